"""The client of etcd: addresses, changes behind a fence, leases, endpoints that are away."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import pytest

from hopsum.controller.ha import etcd as module
from hopsum.controller.ha.etcd import (
    Etcd,
    EtcdAddress,
    EtcdAddressError,
    EtcdError,
    Fence,
    etcd_address,
    is_etcd,
)
from hopsum.protocol.channel import Tls
from hopsum.protocol.extras import MissingExtraError
from tests.support.certificates import certify
from tests.support.etcd import EtcdServer, etcd_server, needs_etcd
from tests.support.machine import loopback


def test_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    assert etcd_address("etcd://a:1,b,[::1]:3/lab-1") == EtcdAddress(
        (("a", 1), ("b", 2379), ("::1", 3)), "lab-1"
    )
    monkeypatch.setenv("HOPSUM_ETCD_AUTHORITY", "ours.pem")
    assert etcd_address("etcds://a/x").tls == Tls(Path("ours.pem"))
    assert str(etcd_address("etcds://a,b:9/x")) == "etcds://a:2379,b:9/x"
    assert [is_etcd(text) for text in ("etcd://", "etcds://x", "jobs", "./etcd://x")] == [
        True, True, False, False,
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "jobs",
        "etcd://",
        "etcd://a",
        "etcd://a/",
        "etcd:///x",
        "etcd://a/x/y",
        "etcd://a/x y",
        "etcd://a:port/x",
        "etcd://a:99999/x",
        "etcd://a,,b/x",
        "etcd://user@a/x",
        "http://a/x",
    ],
)
def test_malformed_etcd_addresses_are_refused(text: str) -> None:
    with pytest.raises(EtcdAddressError, match="expected etcd://HOST:PORT") as caught:
        etcd_address(text)
    assert repr(text) in str(caught.value)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hopsum.protocol.extras.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="jobs in etcd: etcd3gw is not installed; install"):
        Etcd(etcd_address("etcd://a/x"))


@needs_etcd
def test_keys_are_set_and_deleted_together(address: EtcdAddress) -> None:
    etcd = Etcd(address)
    assert etcd.get(address.key("a")) is None
    assert etcd.change({address.key("a"): b"1", address.key("b"): b"\0\xff"})
    assert etcd.change({address.key("c"): b"3"}, [address.key("a")])
    assert etcd.below(address.key("")) == {address.key("b"): b"\0\xff", address.key("c"): b"3"}
    # Another cluster's name may begin with this one's.
    longer = replace(address, name=address.name + "-2")
    etcd.change({longer.key("a"): b"theirs"})
    assert address.key("a") not in etcd.below(address.key(""))
    assert list(etcd.below(longer.key(""))) == [longer.key("a")]


@needs_etcd
@pytest.mark.parametrize("count", [2, 3, 7])
def test_many_keys_come_in_pages(
    address: EtcdAddress, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAGE", 3)
    etcd = Etcd(address)
    keys = {address.key(f"{n:03}"): str(n).encode() for n in range(count)}
    etcd.change(keys)
    assert list(etcd.below(address.key("")).items()) == list(keys.items())


@needs_etcd
def test_a_change_behind_a_fence_that_has_gone_does_nothing(address: EtcdAddress) -> None:
    etcd, guard = Etcd(address), address.key("guard")
    etcd.change({guard: b""})
    entry = etcd.get(guard)
    assert entry is not None
    fence = Fence(guard, entry.created)
    assert etcd.change({guard: b"changed", address.key("a"): b"1"}, fence=fence)
    etcd.change({}, [guard])
    assert not etcd.change({address.key("a"): b"2"}, fence=fence)
    etcd.change({guard: b"made anew"})
    assert not etcd.change({address.key("a"): b"2"}, [address.key("b")], fence)
    assert etcd.below(address.key("a")) == {address.key("a"): b"1"}


@needs_etcd
def test_a_key_goes_with_its_lease(address: EtcdAddress) -> None:
    etcd, key = Etcd(address), address.key("leader")
    lease = etcd.grant(60)
    assert etcd.create(key, "me", lease)
    assert not etcd.create(key, "you", lease)
    entry = etcd.get(key)
    assert entry is not None
    assert (entry.value, entry.lease) == (b"me", lease)
    assert etcd.refresh(lease)
    etcd.revoke(lease)
    assert etcd.get(key) is None
    assert not etcd.refresh(lease)


@pytest.mark.slow
@needs_etcd
def test_endpoints_that_are_away_are_passed_over(server: EtcdServer, address: EtcdAddress) -> None:
    [host] = loopback(1)
    silent = socket.create_server((host, 0))
    both = replace(
        address,
        endpoints=((host, 1), silent.getsockname(), *address.endpoints),
    )
    etcd = Etcd(both)
    with silent:
        assert etcd.change({address.key("a"): b"1"})
        assert Etcd(address).below(address.key("")) == {address.key("a"): b"1"}
        # The one that answered is asked first from then on: no more connections to the others.
        silent.accept()[0].close()
        silent.setblocking(False)
        assert etcd.change({address.key("a"): b"2"})
        with pytest.raises(BlockingIOError):
            silent.accept()
        away = Etcd(replace(address, endpoints=both.endpoints[:2]))
        refused, no_answer = f"{host}:1: connection refused", "no answer within 1 s"
        with pytest.raises(EtcdError, match=f"{refused}; {host}:.*: {no_answer}"):
            away.get(address.key("a"))


@pytest.mark.slow
@needs_etcd
def test_tls_and_a_certificate_of_the_authority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with etcd_server(tmp_path, tls=True) as server:
        plain = replace(server.address, tls=None)
        for name, file in (("AUTHORITY", "ca.pem"), ("CERTIFICATE", "client.pem")):
            monkeypatch.setenv(f"HOPSUM_ETCD_{name}", str(tmp_path / file))
        monkeypatch.setenv("HOPSUM_ETCD_KEY", str(tmp_path / "client.key"))
        ours = etcd_address(str(server.address))
        assert ours == server.address
        key = ours.key("leader")
        Etcd(ours).create(key, "one", Etcd(ours).grant(3))
        found = Etcd(ours).get(key)
        assert found is not None
        assert found.value == b"one"
        certify(tmp_path, "other")
        certify(tmp_path, "stranger", "other")
        files = [tmp_path / file for file in ("ca.pem", "stranger.pem", "stranger.key")]
        for address in (plain, replace(ours, tls=Tls(files[0])), replace(ours, tls=Tls(*files))):
            with pytest.raises(EtcdError, match="etcd"):
                Etcd(address).get(key)
        wrong = Tls(tmp_path / "other.pem", *files[1:])
        with pytest.raises(EtcdError):
            Etcd(replace(ours, tls=wrong)).get(key)
