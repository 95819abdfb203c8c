"""runtime/offloads.h gives the same frames as device/offloads.py."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p4switch.backends import native
from p4switch.device.offloads import completed
from tests.device.test_offloads import TCP, UDP, over_ip, tcp, udp

RUNTIME = Path(native.__file__).parent / "runtime"
LARGEST = 1 << 16
SOURCE = """
#include "offloads.h"

/* The frames made from one, one after the other in `to`; returns how many. */
u32 complete(u8 *f, u32 length, u32 mtu, u8 *to, u32 *lengths) {
    transport_place whole;
    u32 room = segment_payload(f, length, mtu, &whole), number = 0;
    if (!room) {
        complete_checksum(f, length);
        memcpy(to, f, length);
        lengths[0] = length;
        return 1;
    }
    for (u32 at = 0; at < whole.end - whole.payload; at += room, number++) {
        u32 left = whole.end - whole.payload - at;
        lengths[number] = make_segment(to, f, &whole, at, left < room ? left : room, number);
        to += lengths[number];
    }
    return number;
}
"""

Complete = Callable[[bytes, int], list[bytes]]


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Complete:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    folder = tmp_path_factory.mktemp("offloads")
    (folder / "complete.c").write_text(SOURCE)
    flags = ["-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-fsanitize=undefined"]
    flags += ["-fno-sanitize-recover", f"-I{RUNTIME}", "-Wno-unused-function"]
    command = [compiler, *flags, "complete.c", "-o", "complete.so"]
    subprocess.run(command, cwd=folder, check=True)
    library = ctypes.CDLL(str(folder / "complete.so"))

    def call(frame: bytes, mtu: int) -> list[bytes]:
        lengths = (ctypes.c_uint32 * LARGEST)()
        to = ctypes.create_string_buffer(LARGEST)
        count = library.complete(ctypes.create_string_buffer(frame), len(frame), mtu, to, lengths)
        made, at = [], 0
        for length in lengths[:count]:
            made.append(to.raw[at : at + length])
            at += length
        return made

    return call


@pytest.mark.slow
@given(
    version=st.sampled_from([4, 6]),
    tags=st.integers(0, 2),
    payload=st.binary(max_size=300),
    flags=st.integers(0, 255),
    sequence=st.integers(0, (1 << 32) - 1),
    mtu=st.integers(60, 200),
    cut=st.integers(0, 60),
    udp_=st.booleans(),
    offset=st.integers(0, 15),
)
def test_frames_are_as_in_python(
    complete: Complete,
    version: int,
    tags: int,
    payload: bytes,
    flags: int,
    sequence: int,
    mtu: int,
    cut: int,
    udp_: bool,
    offset: int,
) -> None:
    data = bytearray(udp(payload) if udp_ else tcp(payload, flags, sequence))
    if not udp_:
        data[12] = offset << 4
    frame = over_ip(version, UDP if udp_ else TCP, bytes(data), tags)
    for each in (frame, frame + bytes(4), frame[: len(frame) - cut], frame[:cut]):
        assert complete(each, mtu) == completed(each, mtu)
