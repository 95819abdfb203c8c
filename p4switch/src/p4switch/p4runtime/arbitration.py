"""Which client is primary: arbitration by election id (P4Runtime specification 1.5, chapter 5).

One difference from the specification is intended: when the primary leaves, the live client with the
next highest election id becomes primary immediately, as on BMv2. (By the specification there is no
primary until a client offers an id at least as high as any before, so a shell could not succeed a
controller with a higher id until the switch restarts.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from p4switch.proto import U128, p4r, rpc_code
from p4switch.targets.v1model.engine import ControlError

Send = Callable[[p4r.StreamMessageResponse], None]


@dataclass(eq=False, slots=True)
class Client:
    """A stream; `role` is None until its first arbitration message.

    `send` must not lose messages; `offer` may, if many are waiting.
    """

    send: Send
    offer: Send
    role: str | None = None
    election_id: int | None = None


@dataclass(slots=True)
class _Role:
    name: str
    clients: list[Client] = field(default_factory=list)
    primary: Client | None = None
    highest: int | None = None
    """The id of the primary, or of the last one."""

    def elect(self) -> Client | None:
        """Return the client with the highest id above 0."""
        candidates = [c for c in self.clients if c.election_id]
        return max(candidates, key=lambda c: c.election_id or 0, default=None)


class Arbitration:
    """The live clients of a device. Not locked: the caller serialises."""

    def __init__(self, device_id: int) -> None:
        self.device_id = device_id
        self._roles: dict[str, _Role] = {}

    def update(self, client: Client, message: p4r.MasterArbitrationUpdate) -> None:
        """Process a client's arbitration message and notify all affected clients.

        Raises ControlError with the code that ends the client's stream.
        """
        name = message.role.name if message.HasField("role") else ""
        first = client.role is None
        if message.device_id != self.device_id:
            raise ControlError(
                "NOT_FOUND" if first else "FAILED_PRECONDITION",
                f"device id {message.device_id}: this is device {self.device_id}",
            )
        if not first and client.role != name:
            raise ControlError(
                "FAILED_PRECONDITION",
                f"role {name!r}: this stream has role {client.role!r}; open another one",
            )
        if message.role.HasField("config"):
            raise ControlError(
                "INVALID_ARGUMENT",
                f"role {name!r}: every role has access to the whole pipeline; send no role.config",
            )
        role = self._roles.setdefault(name, _Role(name))
        election_id = U128.decode(message.election_id) if message.HasField("election_id") else None
        if election_id and any(
            c.election_id == election_id for c in role.clients if c is not client
        ):
            # finsy recognizes this case by BMv2's wording.
            raise ControlError("INVALID_ARGUMENT", "Election id already exists")
        if first:
            client.role = name
            role.clients.append(client)
        client.election_id = election_id
        was_primary = role.primary is client
        before = role.primary
        role.primary = role.elect()
        if role.primary is not None:
            role.highest = role.primary.election_id
        if role.primary is not before or was_primary:
            self._notify(role, role.clients)
        else:
            self._notify(role, [client])

    def leave(self, client: Client) -> None:
        """Forget a client whose stream ended; the next one becomes primary."""
        if client.role is None:
            return
        role = self._roles[client.role]
        role.clients.remove(client)
        if role.primary is client:
            role.primary = role.elect()
            if role.primary is not None:
                role.highest = role.primary.election_id
            self._notify(role, role.clients)

    def check_primary(self, role: str, election_id: int) -> None:
        """Raise PERMISSION_DENIED unless the live primary of the role has this election id.

        NOT_FOUND for a role for which no client has arbitrated.
        """
        found = self._roles.get(role)
        if found is None and role:
            raise ControlError("NOT_FOUND", f"no client has asked for role {role!r}")
        if found is None or found.primary is None or found.primary.election_id != election_id:
            raise ControlError("PERMISSION_DENIED", "Not primary")

    def is_primary(self, client: Client) -> bool:
        """Return whether a client is primary of its role."""
        return client.role is not None and self._roles[client.role].primary is client

    def primaries(self) -> list[Client]:
        """Return the primary of each role that has one."""
        return [role.primary for role in self._roles.values() if role.primary is not None]

    def _notify(self, role: _Role, clients: list[Client]) -> None:
        for client in clients:
            response = p4r.StreamMessageResponse()
            message = response.arbitration
            message.device_id = self.device_id
            if role.name:
                message.role.name = role.name
            if role.highest is not None:
                message.election_id.CopyFrom(U128.encode(role.highest))
            if role.primary is client:
                message.status.code = rpc_code.OK
                message.status.message = "you are primary"
            elif role.primary is not None:
                message.status.code = rpc_code.ALREADY_EXISTS
                message.status.message = "another client is primary"
            else:
                message.status.code = rpc_code.NOT_FOUND
                message.status.message = "no client is primary"
            client.send(response)
