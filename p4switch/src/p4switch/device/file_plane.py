"""Packets from capture files instead of interfaces, as BMv2's `--use-files`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from p4switch.device.plane import DigestSink, FrameSink, Plane
from p4switch.packet_io.pcap import PcapError, PcapWriter, read_pcap
from p4switch.targets.v1model.engine import ControlError, Engine, EngineStatistics


class FilePlane(Plane):
    """Takes the frames of `NAME_in.pcap` for each port, and writes `NAME_out.pcap`.

    All frames go through one by one in order of their times (then of their ports, then of their
    places); the switch's clock is the time since the first of them, and what goes out has the
    time of the frame that came in. So the same files and entries always give the same files.
    `done` is set at the end. Raises PcapError for a file that is missing or no capture.
    """

    def __init__(
        self,
        names: Mapping[int, str],
        wait_seconds: float,
        cpu_port: int | None,
        on_frames: FrameSink,
        on_digests: DigestSink,
    ) -> None:
        """Read the files; frames are processed `wait_seconds` after the first engine is in use."""
        super().__init__({}, cpu_port, on_frames, on_digests)
        self.done = threading.Event()
        self._frames = _read(names)
        self._out = {port: PcapWriter(Path(f"{name}_out.pcap")) for port, name in names.items()}
        self._wait_seconds = wait_seconds
        self._seconds = self._frames[0][0] if self._frames else 0.0
        self._first = self._seconds
        self._engine: Engine | None = None
        self._lock = threading.RLock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="packet-files", daemon=True)

    def now_us(self) -> int:
        """See `Plane`."""
        return round((self._seconds - self._first) * 1e6)

    def use(self, engine: Engine, handover: Callable[[], None] | None = None) -> None:
        """See `Plane`."""
        previous = self._engine
        if handover is not None:
            with self._lock:
                handover()
                self._engine = engine
        else:
            self._engine = engine
            if previous is not None and previous is not engine:
                previous.interrupt()
        if previous is None:
            self._thread.start()

    def interrupt(self) -> None:
        """See `Plane`."""
        self._ended.set()
        if self._engine is not None:
            self._engine.interrupt()

    def statistics(self) -> EngineStatistics:
        """See `Plane`."""
        return self._engine.statistics() if self._engine is not None else EngineStatistics()

    def inject(self, frame: bytes) -> None:
        """See `Plane`."""
        if self._cpu_port is None or self._engine is None:
            raise ControlError("FAILED_PRECONDITION", "the switch has no CPU port (--cpu-port)")
        self._process(self._cpu_port, frame)

    def close(self) -> None:
        """See `Plane`."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        for writer in self._out.values():
            writer.close()

    def _run(self) -> None:
        self._ended.wait(self._wait_seconds)
        for seconds, port, frame in self._frames:
            if self._ended.is_set():
                break
            self._seconds = seconds
            self._process(port, frame)
        self.done.set()

    def _process(self, port: int, frame: bytes) -> None:
        with self._lock:
            engine = self._engine
            assert engine is not None
            to_cpu = []
            for out_port, sent in engine.process([(port, frame)], self.now_us()):
                if out_port == self._cpu_port:
                    to_cpu.append(sent)
                elif out_port in self._out:
                    self._out[out_port].write(self._seconds, sent)
            if to_cpu:
                self._on_frames(to_cpu)
            digests = engine.take_digests()
            if digests:
                self._on_digests(digests)


def _read(names: Mapping[int, str]) -> list[tuple[float, int, bytes]]:
    """Return (seconds, port, frame) of all ports' files, in order."""
    found: list[tuple[float, int, bytes]] = []
    for port, name in sorted(names.items()):
        path = Path(f"{name}_in.pcap")
        try:
            found += ((seconds, port, frame) for seconds, frame in read_pcap(path))
        except FileNotFoundError:
            raise PcapError(
                f"{path}: no such file; with --use-files, -i {port}@{name} reads it"
            ) from None
    return sorted(found, key=lambda item: item[:2])
