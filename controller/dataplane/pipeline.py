"""A compiled P4 program for a switch."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from finsy.proto import p4i
from google.protobuf import text_format

from hopsum.protocol.errors import InputError


class PipelineError(InputError):
    """A program file is missing or unreadable."""

    exit_code = 1


@dataclass(frozen=True)
class Pipeline:
    """`p4info`: the program's control plane interface; `config`: the target's code (BMv2: its
    JSON).

    `lanes`: values a packet, as the program was compiled for; `slots`: registers it has.
    """

    p4info: p4i.P4Info
    config: bytes
    lanes: int
    slots: int

    def cookie(self, history: str = "") -> int:
        """Return a number that differs between programs, and between histories of jobs on one.

        (P4Runtime specification, 9.3.) `history`: see `JobTable`.
        """
        digest = hashlib.sha256(self._digest + history.encode()).digest()
        return int.from_bytes(digest[:8], "big")

    @cached_property
    def _digest(self) -> bytes:
        offered = self.p4info.SerializeToString(deterministic=True)
        return hashlib.sha256(offered + b"\0" + self.config).digest()


def load_pipeline(p4info: Path, config: Path, lanes: int, slots: int) -> Pipeline:
    """Read a pipeline from its two files, the first one text; PipelineError if that cannot be."""
    for path in (p4info, config):
        if not path.is_file():
            raise PipelineError(f"{path}: no such file; p4c makes it of p4src/hopsum.p4")
    try:
        offered = text_format.Parse(p4info.read_bytes(), p4i.P4Info())
    except (text_format.ParseError, UnicodeDecodeError) as error:
        raise PipelineError(f"{p4info}: expected P4Info as text: {error}") from None
    return Pipeline(offered, config.read_bytes(), lanes, slots)
