"""Connections to a Unix socket as another user of the machine (needs root)."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

NOBODY = 65534
"""A user, and a group, that own nothing."""

_RELAY = """
import os, socket, sys, threading
os.setgroups([])
os.setgid(int(sys.argv[4]))
os.setuid(int(sys.argv[3]))
inner = socket.socket(socket.AF_UNIX)
inner.bind(sys.argv[2])
os.chmod(sys.argv[2], 0o666)
inner.listen()
print("ready", flush=True)

def copy(source, target):
    try:
        while data := source.recv(65536):
            target.sendall(data)
    except OSError:
        pass
    for end in (source, target):
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

while True:
    here, _ = inner.accept()
    there = socket.socket(socket.AF_UNIX)
    try:
        there.connect(sys.argv[1])
    except OSError as error:
        print(error.strerror, flush=True)
        here.close()
        continue
    for pair in ((here, there), (there, here)):
        threading.Thread(target=copy, args=pair, daemon=True).start()
"""


@contextlib.contextmanager
def as_user(path: Path, folder: Path, uid: int, group: int) -> Iterator[tuple[str, Path]]:
    """Give an address in `folder` whose connections reach the socket `path` as another user.

    Also the file in which that user's errors stand. All users must be able to enter `folder`.
    """
    inner, log = folder / f"as-{uid}-{group}", folder / f"log-{uid}-{group}"
    with log.open("wb") as out:
        process = subprocess.Popen(
            # It becomes that user itself, who may not be able to start this Python.
            [
                *(sys.executable, "-I", "-S", "-c", _RELAY),
                *(str(path), str(inner), str(uid), str(group)),
            ],
            stdout=subprocess.PIPE,
            stderr=out,
            cwd="/",
        )
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"ready\n", log.read_text()
            yield f"unix:{inner}", log
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
