"""The tracer for the options of `p4switch run`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from p4switch.cli.options import fail, print_line

if TYPE_CHECKING:
    from p4switch.backends.reference.trace import PacketTrace, Tracer

TraceSink = Callable[["PacketTrace"], None]

CAPTURE = "pcapng"
"""A form of traces besides FORMS, for files."""


def make_tracer(
    form: str | None,
    file: Path | None,
    log_level: str,
    executor: str | None,
    ports: list[int] | None,
    tables: list[str] | None,
    headers: list[str] | None,
    fields: list[str] | None,
    interfaces: Mapping[int, str] | None = None,
    start_ns: int | None = None,
) -> Tracer | None:
    """Return the tracer that `--trace` requests.

    `--log-level trace` requests text in the log, as in BMv2. `interfaces` and `start_ns`: see
    `TraceCapture`.
    """
    if form is None and log_level != "trace":
        if file is not None or ports or tables or headers or fields:
            fail("--trace-file, -port, -table, -header, -field need --trace text, json or pcapng")
        return None
    if executor == "native":
        fail("packets are traced by the interpreter: leave --executor native out")
    from p4switch.backends.reference.trace import FORMS, TraceFilter, Tracer, sink_of

    if form is not None and form not in (*FORMS, CAPTURE):
        fail(f"--trace {form}: expected one of {', '.join((*FORMS, CAPTURE))}")
    chosen = TraceFilter(
        frozenset(ports or ()),
        frozenset(tables or ()),
        frozenset(headers or ()),
        frozenset(_field(text) for text in fields or ()),
    )
    logging.getLogger("p4switch").info("packets are traced: they go through the interpreter")
    if form == CAPTURE:
        if file is None:
            fail("--trace pcapng needs --trace-file FILE.pcapng")
        return Tracer(_capture_sink(file, interfaces or {}, start_ns), chosen)
    write: Callable[[str], None] = logging.getLogger("p4switch.trace").debug
    if form is not None and file is None:
        write = print_line
    elif file is not None:
        write = _line_writer(file)
    return Tracer(sink_of(form or "text", write), chosen)


def _capture_sink(file: Path, interfaces: Mapping[int, str], start_ns: int | None) -> TraceSink:
    """Return a function that writes traces into a capture; see `TraceCapture`."""
    from p4switch.backends.reference.trace_capture import TraceCapture

    try:
        return TraceCapture(file, interfaces, start_ns)
    except OSError as error:
        fail(f"--trace-file {file}: cannot be written: {error.strerror}")


def _field(text: str) -> tuple[str, str, int]:
    """Parse `HEADER.FIELD=VALUE` to header, field and value."""
    name, _, value = text.partition("=")
    header, _, field = name.rpartition(".")
    try:
        return header, field, int(value, 0)
    except ValueError:
        fail(f"--trace-field {text}: expected HEADER.FIELD=NUMBER, such as hdr.ipv4.ttl=64")


def _line_writer(path: Path) -> Callable[[str], None]:
    """Return a function that appends lines to a file without buffering."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w", encoding="utf-8", buffering=1)
    except OSError as error:
        fail(f"--trace-file {path}: cannot be written: {error.strerror}")

    def write(text: str) -> None:
        file.write(text + "\n")

    return write


def check_tables(config: bytes, names: list[str]) -> None:
    """Raise an error for names of unknown tables."""
    from p4switch.device.loading import checked_program

    known = [table.name for table in checked_program(config).tables]
    for name in names:
        if not any(table == name or table.endswith(f".{name}") for table in known):
            fail(f"--trace-table {name}: no such table; there are {', '.join(known) or 'none'}")
