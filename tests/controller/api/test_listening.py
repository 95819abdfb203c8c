"""Where the controller listens, and what it refuses to listen to."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from hopsum.controller.api.listening import AccessError, ServiceError, at, check_access
from hopsum.controller.api.rendezvous import default_address
from hopsum.controller.api.unix_callers import NoGroupError
from hopsum.protocol.channel import Tls
from p4switch.packet_io.private_files import UnsafePathError

CERTIFIED = Tls(Path("ours.pem"), Path("own.pem"), Path("own.key"))
ANONYMOUS = Tls(None, Path("own.pem"), Path("own.key"))
"""It takes no authority's certificates: callers show none."""


@pytest.mark.parametrize(
    ("address", "tls", "insecure", "group"),
    [
        ("unix:/run/x", None, False, None),
        ("unix:/run/x", None, False, "root"),
        ("0.0.0.0:9600", CERTIFIED, False, None),
        ("0.0.0.0:9600", ANONYMOUS, True, None),
        ("127.0.0.1:0", None, True, None),
    ],
)
def test_addresses_that_let_in_whom_they_should(
    address: str, tls: Tls | None, insecure: bool, group: str | None
) -> None:
    check_access(address, tls, insecure=insecure, group=group)


def test_tcp_without_certificates_is_refused() -> None:
    words = "anyone could operate the cluster; give --tls-certificate, --tls-key and"
    for address in ("127.0.0.1:9600", "0.0.0.0:9600"):
        for tls in (None, ANONYMOUS):
            with pytest.raises(AccessError, match=words):
                check_access(address, tls)
    with pytest.raises(AccessError, match="TLS is for host:port; access to a Unix socket"):
        check_access("unix:/run/x", CERTIFIED)
    with pytest.raises(NoGroupError, match="group 'none-such': no such group on this machine"):
        check_access("unix:/run/x", None, group="none-such")
    with pytest.raises(AccessError, match=r"group 'staff': 0\.0\.0\.0:9600 is not a Unix socket"):
        check_access("0.0.0.0:9600", CERTIFIED, insecure=True, group="staff")


def test_an_address_in_use_is_refused(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/c"

    async def twice() -> None:
        async with at(address)([]):
            with pytest.raises(ServiceError, match="another process listens there"):
                async with at(address)([]):
                    pass
        # A socket left by a process that is gone does not matter.
        async with at(address)([]):
            pass

    asyncio.run(twice())


def test_the_default_is_a_socket_in_a_folder_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    tmp_path.chmod(0o700)
    assert default_address() == f"unix:{tmp_path}/hopsum-controller.socket"
    tmp_path.chmod(0o777)
    with pytest.raises(UnsafePathError, match="writable for other users"):
        default_address()
