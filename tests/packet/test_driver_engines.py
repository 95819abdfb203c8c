"""The P4Runtime driver against real switches: the embedded one, and BMv2 where it is installed.

Most switches have no ports: rules, counters and slots need none.
"""

from __future__ import annotations

import asyncio
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from finsy.proto import p4i
from google.protobuf import text_format

from hopsum.collectives.choices import Engine
from hopsum.controller.dataplane.connection import open_channel, over_tls
from hopsum.controller.dataplane.driver import Driver, DriverError, State, SwitchTarget
from hopsum.controller.dataplane.pipeline import Pipeline
from hopsum.controller.dataplane.rules import Loss, SwitchRules, TableEntry, rules_for
from hopsum.controller.dataplane.slots import SlotState
from hopsum.experiment.pipelines import compile_pipeline
from hopsum.network.loaders import load_network
from hopsum.planning.model.placement import place
from hopsum.planning.model.request import PlanRequest
from hopsum.planning.registry import plan_job
from hopsum.protocol.channel import Tls
from hopsum.protocol.outcomes import Outcome
from hopsum.protocol.wire import Hop
from p4switch.packet_io.sockets import open_packet_socket
from tests.packet.hopsum.packets import LAST_HOP, Packet
from tests.support.bmv2 import need_bmv2
from tests.support.certificates import certify
from tests.support.machine import PATIENCE as WAIT
from tests.support.machine import loopback, own_port
from tests.support.paths import HOPSUM_P4INFO


@pytest.fixture(scope="module", params=["embedded", "bmv2"])
def engine(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if name == "bmv2":
        need_bmv2()
    return name


@pytest.fixture(scope="module")
def pipeline(engine: str) -> Pipeline:
    return compile_pipeline(Engine(engine), lanes=256, slots=4096)


class SwitchProcess:
    """One switch process; `interfaces` are its ports from 1 on."""

    def __init__(self, engine: str, *interfaces: str, options: Sequence[str] = ()) -> None:
        self.target = SwitchTarget("s1", f"{loopback(1)[0]}:9559")
        listen = ["--grpc-server-addr", self.target.address, "--cpu-port", "510", *options]
        common = ["--no-p4", "--device-id", "1", "--log-level", "off"]
        for port, interface in enumerate(interfaces, start=1):
            common += ["-i", f"{port}@{interface}"]
        if engine == "embedded":
            run = [str(Path(sys.executable).with_name("p4switch")), "run"]
            self.command = [*run, *common, *listen]
        else:
            run = ["simple_switch_grpc", "--thrift-port", str(own_port())]
            self.command = [*run, *common, "--", *listen]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.process = subprocess.Popen(
            self.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def switch(engine: str) -> Iterator[SwitchProcess]:
    process = SwitchProcess(engine)
    process.start()
    yield process
    process.kill()


def star_rules(hosts: int) -> SwitchRules:
    network = load_network(f"star:{hosts}")
    placement = place(network)
    plan = plan_job(network, PlanRequest(1, 1, placement.workers, placement.servers, window=32))
    return rules_for(network, [plan], [Loss("h1", "s1", 0.5), Loss("s1", "h1", 0.1)])["s1"]


@pytest.mark.slow
def test_both_compilers_agree_on_the_golden_p4info(pipeline: Pipeline) -> None:
    assert pipeline.p4info == text_format.Parse(HOPSUM_P4INFO.read_text(), p4i.P4Info()), (
        f"p4src changed the control plane's contract; if it should, "
        f"copy the P4Info to {HOPSUM_P4INFO}"
    )


@pytest.mark.slow
def test_rules_slots_and_counters(switch: SwitchProcess, pipeline: Pipeline) -> None:
    async def main() -> None:
        details: list[str] = []
        async with Driver(
            [switch.target],
            pipeline,
            {"s1": star_rules(4)},
            listener=lambda name, state, detail: details.append(detail),
        ) as driver:
            await driver.wait(timeout=WAIT)
            await driver.apply({"s1": star_rules(4)}, WAIT)
            assert details[-1] == "0 updates"
            slot = await driver.inspect("s1", 4095)
            assert (slot.slot, slot.valid) == (4095, False)
            assert (await driver.outcomes("s1"))[Outcome.INSPECTED] == 1
            await driver.apply({"s1": star_rules(2)}, WAIT)
            await driver.apply({"s1": SwitchRules()}, WAIT)
            await driver.apply({"s1": SwitchRules()}, WAIT)
            assert details[-1] == "0 updates"

    asyncio.run(main())


@pytest.mark.slow
def test_switches_let_in_the_controllers_certificate_only(
    engine: str, pipeline: Pipeline, tmp_path: Path
) -> None:
    """Over mutual TLS, with BMv2's flags. Without it the driver gets nowhere."""
    certify(tmp_path, "ours")
    certify(tmp_path, "controller", "ours")
    files = [("cacert", "ours.pem"), ("cert", "switch.pem"), ("key", "switch.key")]
    options = [w for part, f in files for w in (f"--grpc-server-{part}", str(tmp_path / f))]
    tls = Tls(tmp_path / "ours.pem", tmp_path / "controller.pem", tmp_path / "controller.key")
    process = SwitchProcess(
        engine, options=["--grpc-server-ssl", "--grpc-server-with-client-auth", *options]
    )
    # The certificate names an address, and another switch has another.
    certify(tmp_path, "switch", "ours", f"IP:{process.target.address.partition(':')[0]}")
    process.start()
    rules = {"s1": star_rules(4)}

    async def main() -> None:
        async with Driver([process.target], pipeline, rules, connect=over_tls(tls)) as driver:
            await driver.wait(timeout=WAIT)
        for connect in (open_channel, over_tls(Tls(tls.authority))):
            async with Driver([process.target], pipeline, rules, connect=connect) as driver:
                with pytest.raises(TimeoutError, match=r"s1 .* connecting"):
                    await driver.wait(timeout=0.5)

    try:
        asyncio.run(main())
    finally:
        process.kill()


@pytest.mark.slow
def test_a_new_controller_finds_everything_in_place(
    switch: SwitchProcess, pipeline: Pipeline
) -> None:
    async def main() -> None:
        for expected in ("", "0 updates"):
            details: list[str] = []
            async with Driver(
                [switch.target],
                pipeline,
                {"s1": star_rules(3)},
                listener=lambda name, state, detail, seen=details: seen.append(detail),  # type: ignore[misc]
            ) as driver:
                await driver.wait(timeout=WAIT)
            assert details[-1].endswith(expected)

    asyncio.run(main())


@pytest.mark.slow
def test_a_killed_switch_converges(switch: SwitchProcess, pipeline: Pipeline) -> None:
    async def main() -> None:
        gone = asyncio.Event()

        def listen(name: str, state: State, detail: str) -> None:
            if detail == "lost":
                gone.set()

        rules = {"s1": star_rules(2)}
        async with Driver([switch.target], pipeline, rules, listener=listen) as driver:
            await driver.wait(timeout=WAIT)
            switch.kill()
            await asyncio.wait_for(gone.wait(), WAIT)
            switch.start()
            await driver.wait(timeout=WAIT)
            assert driver.states() == {"s1": State.READY}

    asyncio.run(main())


@pytest.mark.slow
def test_a_stopped_switch_counts_as_lost_until_it_runs_on(
    switch: SwitchProcess, pipeline: Pipeline
) -> None:
    """Its connections stay open, and what it should hold meanwhile it gets when it is back."""

    async def main() -> None:
        silent = asyncio.Event()

        def listen(name: str, state: State, detail: str) -> None:
            if state is State.CONNECTING and "no answer" in detail:
                silent.set()

        rules = {"s1": star_rules(4)}
        driver = Driver([switch.target], pipeline, rules, silence=2.0, listener=listen)
        async with driver:
            await driver.wait(timeout=WAIT)
            assert switch.process is not None
            switch.process.send_signal(signal.SIGSTOP)
            await asyncio.wait_for(silent.wait(), WAIT)
            assert driver.states() == {"s1": State.CONNECTING}
            with pytest.raises(TimeoutError, match="not ready: s1"):
                await driver.apply({"s1": star_rules(2)}, 0)
            switch.process.send_signal(signal.SIGCONT)
            await driver.wait(timeout=WAIT)
        updates: list[str] = []
        async with Driver(
            [switch.target],
            pipeline,
            {"s1": star_rules(2)},
            listener=lambda name, state, detail: updates.append(detail),
        ) as driver:
            await driver.wait(timeout=WAIT)
        assert updates[-1] == "0 updates"

    asyncio.run(main())


@pytest.mark.slow
def test_refused_updates_are_named(switch: SwitchProcess, pipeline: Pipeline) -> None:
    async def main() -> None:
        async with Driver([switch.target], pipeline) as driver:
            with pytest.raises(DriverError, match="insert multicast group 9: INVALID_ARGUMENT"):
                await driver.apply({"s1": SwitchRules(groups={9: (1, 1)})}, WAIT)

    asyncio.run(main())


BROADCAST, MARKER = 0xFFFFFFFFFFFF, 0x020000000099


def flood_to(*ports: int) -> SwitchRules:
    """Broadcasts go to these ports; a marker goes to port 2."""
    return SwitchRules(
        (
            TableEntry("l2_forward", (("dst_mac", BROADCAST),), "flood", (("group", 3),)),
            TableEntry("l2_forward", (("dst_mac", MARKER),), "forward", (("port", 2),)),
        ),
        {3: ports},
    )


def frame_to(mac: int) -> bytes:
    return mac.to_bytes(6, "big") + bytes(6) + b"\x88\xb5" + bytes(46)


@pytest.mark.slow
def test_a_program_pushed_over_another_replicates_to_its_own_ports_only(
    engine: str, pipeline: Pipeline, veth: tuple[str, str], other_veth: tuple[str, str]
) -> None:
    switch = SwitchProcess(engine, veth[0], other_veth[0])
    switch.start()
    here, there = open_packet_socket(veth[1]), open_packet_socket(other_veth[1])

    def arrived() -> list[bytes]:
        """Frames that leave port 2 for a broadcast and the marker behind it."""
        here.send(frame_to(BROADCAST))
        here.send(frame_to(MARKER))
        frames: list[bytes] = []
        while not frames or frames[-1] != frame_to(MARKER):
            assert select.select([there], [], [], WAIT)[0], f"no marker after {frames}"
            frames.append(there.recv(2048))
        return frames[:-1]

    async def hold(program: Pipeline, rules: SwitchRules) -> None:
        async with Driver([switch.target], program, {"s1": rules}) as driver:
            await driver.wait(timeout=WAIT)

    try:
        asyncio.run(hold(pipeline, flood_to(2)))
        assert arrived() == [frame_to(BROADCAST)]
        changed = replace(pipeline, config=pipeline.config + b"\n")
        asyncio.run(hold(changed, flood_to(5)))
        assert arrived() == []
    finally:
        here.close()
        there.close()
        switch.kill()


@pytest.mark.slow
def test_another_history_of_jobs_empties_the_slots(
    engine: str, pipeline: Pipeline, veth: tuple[str, str], other_veth: tuple[str, str]
) -> None:
    """The same program is pushed once more, and its registers are as at first."""
    switch = SwitchProcess(engine, veth[0], other_veth[0])
    switch.start()
    here, there = open_packet_socket(veth[1]), open_packet_socket(other_veth[1])
    admitted = (("slot_base", 0), ("window_mask", 31), ("fan_in", 1), ("children", 1))
    keys = (("job", 1), ("tree", 0), ("ingress_port", 1))
    rules = SwitchRules((TableEntry("admission", keys, "admit_children", admitted),))
    up = Packet((7,) * pipeline.lanes, hops=(Hop(aggregate=True, port=2), LAST_HOP))

    async def slot_after(history: str, *, send: bool) -> SlotState:
        driver = Driver([switch.target], pipeline, {"s1": rules})
        driver.history = history
        async with driver:
            await driver.wait(timeout=WAIT)
            if send:
                here.send(up.frame())
                assert select.select([there], [], [], WAIT)[0], "no sum"
                assert Packet.read(there.recv(2048)) == up.popped()
            return await driver.inspect("s1", 0)

    try:
        for history in ("a", "b"):
            assert not asyncio.run(slot_after(history, send=False)).valid
            assert asyncio.run(slot_after(history, send=True)).complete
            assert asyncio.run(slot_after(history, send=False)).complete
    finally:
        here.close()
        there.close()
        switch.kill()
