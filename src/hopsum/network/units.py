"""Rates, sizes and times as people write them: `100M`, `1Gbit/s`, `1GB`, `5ms`."""

from __future__ import annotations

import math
import re
from fractions import Fraction

_NUMBER = r"\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*"
_RATE = re.compile(_NUMBER + r"(?:([kKMGT]?)(?:bit(?:/s)?|bps|b/s)?|([mgt])(?:bit(?:/s)?|bps))\s*")
_TIME = re.compile(_NUMBER + r"(s|ms|us|µs|ns)?\s*")
_COUNT = re.compile(_NUMBER + r"([kKMGT]?)\s*")
_SHARE = re.compile(_NUMBER + r"(%?)\s*")
_SIZE = re.compile(_NUMBER + r"([kKMGT]?)(i?)B?\s*")
MOST_BYTES = 1e15
MOST_DIGITS = 19
"""Maximum digits of a count; longer ones are refused where they are used."""
_RATE_STEPS = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_TIME_STEPS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}


def parse_rate(value: str | float) -> float:
    """Return bits per second for a number or a text such as `100M`; ValueError unless above 0."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        rate = _float(value)
    else:
        match = _RATE.fullmatch(str(value))
        if not match:
            raise ValueError(f"rate {value!r}: expected bits per second such as 1e8, 100M or 1Gbit")
        rate = float(match[1]) * _RATE_STEPS[match[2] or (match[3] or "").upper()]
    if not 0 < rate < float("inf"):
        raise ValueError(f"rate {value!r:.40}: expected above 0 bit/s, and finite")
    return rate


def parse_time(value: str | float, unit: str = "s") -> float:
    """Return seconds for a number (in `unit`) or a text such as `5ms`; else ValueError."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        seconds = _float(value) * _TIME_STEPS[unit]
    else:
        match = _TIME.fullmatch(str(value))
        if not match:
            raise ValueError(f"time {value!r}: expected a time such as 0.005, 5ms or 20us")
        seconds = float(match[1]) * _TIME_STEPS[match[2] or unit]
    if not 0 <= seconds < float("inf"):
        raise ValueError(f"time {value!r:.40}: expected 0 s or more, and finite")
    return seconds


def _float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def parse_size(value: str | int) -> int:
    """Return bytes for a number or a text such as `1GB` (powers of 1000) or `64KiB`.

    ValueError for others.
    """
    match = _SIZE.fullmatch(str(value))
    if not match or (match[3] and not match[2]):
        raise ValueError(f"size {value!r}: expected bytes such as 1e6, 100MB, 1GB or 64KiB")
    step = _RATE_STEPS[match[2]]
    if match[3]:
        step = 1024.0 ** round(math.log(step, 1000))
    size = float(match[1]) * step
    if not 0.5 < size <= MOST_BYTES:
        raise ValueError(
            f"size {value!r:.40}: expected at least 1 byte, and at most {MOST_BYTES:.0e}"
        )
    return round(size)


def parse_count(value: str | int) -> int:
    """Return a whole number for a number or a text such as `1e6` or `1M`; else ValueError."""
    match = _COUNT.fullmatch(str(value))
    count = float(match[1]) * _RATE_STEPS[match[2]] if match else math.nan
    # Of texts that are whole numbers as they stand, no digit is lost.
    if str(value).strip().isdecimal() and len(str(value)) < MOST_DIGITS:
        return int(value)
    if not count.is_integer():
        raise ValueError(f"{value!r:.40}: expected a whole number such as 1000000, 1e6 or 1M")
    return int(count)


def parse_share(value: str | float) -> float:
    """Return a fraction for a number or a text such as `0.01` or `1%`; else ValueError."""
    match = _SHARE.fullmatch(str(value))
    if not match:
        raise ValueError(f"{value!r:.40}: expected a fraction such as 0.01 or 1%")
    return float(Fraction(match[1]) / 100) if match[2] else float(match[1])


def has_unit(text: str) -> bool:
    """Return whether a text is more than a number, so that its unit needs no guess."""
    return re.fullmatch(_NUMBER, text) is None


def format_rate(rate: float | None) -> str:
    """Format a rate in bits per second; None is 'unlimited'."""
    if rate is None:
        return "unlimited"
    for step, name in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if rate >= step:
            return f"{rate / step:g} {name}bit/s"
    return f"{rate:g} bit/s"


def format_load(rate: float) -> str:
    """Format a measured rate in bits per second, with three significant digits."""
    return format_rate(float(f"{rate:.3g}"))


def format_si(value: Fraction) -> str:
    """Return a rate without its unit for people: `40M`, and `3/2` below 1000."""
    if value < 1000:
        return str(value) if value.denominator < 1000 else f"{float(value):.6g}"
    return format_rate(float(value)).removesuffix("bit/s").replace(" ", "")


def format_bytes(count: float) -> str:
    """Format a number of bytes in powers of 1000."""
    for step, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= step:
            return f"{count / step:.4g} {name}"
    return f"{count:.4g} B"


def format_time(seconds: float) -> str:
    """Format a time in seconds."""
    for step, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= step:
            return f"{seconds / step:.4g} {name}"
    return f"{seconds * 1e9:.4g} ns"
