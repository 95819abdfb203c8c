"""Packet sockets of a process that has CAP_NET_RAW, and no more of root."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import socket
from p4switch.packet_io.sockets import BUFFER_BYTES, open_packet_socket
sock = open_packet_socket("lo")
print(sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) >= 2 * BUFFER_BYTES)
"""


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="takes rights away (root, setpriv)"
)
@pytest.mark.parametrize(
    ("kept", "enough"), [("+net_raw", False), ("+net_raw,+net_admin", True)], ids=["raw", "admin"]
)
def test_buffers_are_as_large_as_the_kernel_lets_them_be(kept: str, enough: bool) -> None:
    most = int(Path("/proc/sys/net/core/rmem_max").read_text())
    command = ["setpriv", "--inh-caps", f"-all,{kept}", "--bounding-set", f"-all,{kept}", "--"]
    done = subprocess.run(
        [*command, sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(enough or most >= 8 << 20)
