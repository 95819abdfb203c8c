"""What BMv2's run-time interface (`bmv2_runtime`) needs to know of a running switch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from p4switch.p4runtime.service import DataPlane, P4RuntimeService
from p4switch.programs import is_bmv2_json
from p4switch.targets.v1model.engine import Engine


class RuntimeHost:
    """See `bmv2_runtime.runtime.Host`."""

    def __init__(
        self, service: P4RuntimeService, plane: DataPlane, interfaces: Mapping[int, str]
    ) -> None:
        self._service = service
        self._plane = plane
        self._interfaces = interfaces

    @property
    def engine(self) -> Engine | None:
        """See `Host`."""
        return self._service.engine

    def now_us(self) -> int:
        """See `Host`."""
        return self._plane.now_us()

    def document(self) -> bytes:
        """See `Host`."""
        engine, config = self._service.engine, self._service.device_config
        if engine is None or is_bmv2_json(config):
            return config
        from p4switch.device.bmv2_document import bmv2_document

        return bmv2_document(engine.program, config)

    def ports(self) -> Sequence[tuple[int, str, bool]]:
        """See `Host`."""
        return [(number, name, _has_link(name)) for number, name in self._interfaces.items()]


def _has_link(interface: str) -> bool:
    try:
        return Path("/sys/class/net", interface, "carrier").read_text().strip() == "1"
    except OSError:  # Down, or a capture file.
        return False
