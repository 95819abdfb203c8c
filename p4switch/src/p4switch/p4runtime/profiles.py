"""Action profiles: members, groups and one-shot entries (P4Runtime 1.5, 9.2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from p4switch.ir import ActionChoice, ExternInstance, Table
from p4switch.p4runtime.bytestrings import decode
from p4switch.p4runtime.entities import HIDDEN_IDS, UpdateKind, bad, check_known
from p4switch.p4runtime.ids import IdKind
from p4switch.p4runtime.names import annotation
from p4switch.p4runtime.pipeline import EntryNote, OneShot, Pipeline, Share
from p4switch.p4runtime.replication import PORT_BITS
from p4switch.proto import p4r
from p4switch.targets.v1model.engine import ControlError
from p4switch.targets.v1model.replication_state import LARGEST_PORT

LARGEST_WEIGHTS = 1 << 16
"""Maximum sum of the weights of a group, for which the engine repeats members."""


class ProfileWriter:
    """Writes members, groups and one-shot action sets of one pipeline."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._engine = pipeline.engine
        self._entities = pipeline.entities
        self._next_id = HIDDEN_IDS

    # --- members and groups

    def member(self, kind: UpdateKind, message: p4r.ActionProfileMember) -> None:
        """Insert, modify or delete a member."""
        profile = self._profile(message.action_profile_id)
        if not message.member_id:
            raise bad(f"profile {profile.name!r}: a member's id must not be 0")
        if kind == p4r.Update.DELETE:
            self._check_unwatched(profile, message.member_id)
            self._engine.set_member(profile.name, message.member_id, None)
            return
        known = message.member_id in self._engine.members(profile.name)
        check_known(kind, known, f"member {message.member_id} of profile {profile.name!r}")
        self.check_style(profile, one_shot=False)
        if not message.HasField("action"):
            raise bad(f"member {message.member_id} of profile {profile.name!r} has no action")
        actions = self._entities.profile_actions(profile)
        choice = self._entities.choice(f"profile {profile.name!r}", actions, message.action)
        self._engine.set_member(profile.name, message.member_id, choice)

    def group(self, kind: UpdateKind, message: p4r.ActionProfileGroup) -> None:
        """Insert, modify or delete a group."""
        profile = self._profile(message.action_profile_id)
        number = message.group_id
        where = f"group {number} of profile {profile.name!r}"
        if not number:
            raise bad(f"profile {profile.name!r}: a group's id must not be 0")
        notes = self._pipeline.notes.groups
        if kind == p4r.Update.DELETE:
            self._set_group(profile.name, number, None)
            del notes[profile.name, number]
            return
        before = notes.get((profile.name, number))
        check_known(kind, before is not None, where)
        self.check_style(profile, one_shot=False)
        if before is not None and before.max_size != message.max_size:
            raise bad(f"{where}: max_size must stay {before.max_size}")
        limit = max_group_size(profile)
        if limit and not 0 < message.max_size <= limit:
            raise bad(f"{where}: max_size {message.max_size} is not in 1..{limit}")
        ids = [member.member_id for member in message.members]
        if len(set(ids)) != len(ids):
            raise bad(f"{where}: a member is given twice; use weights")
        shares = self._shares(where, ids, message.members)
        size = group_size(profile, shares, where)
        if message.max_size and size > message.max_size:
            raise ControlError(
                "RESOURCE_EXHAUSTED",
                f"{where}: size {size} exceeds its max_size {message.max_size}",
            )
        self._set_group(profile.name, number, shares)
        kept = p4r.ActionProfileGroup()
        kept.CopyFrom(message)
        notes[profile.name, number] = kept

    def _profile(self, number: int) -> ExternInstance:
        return self._entities.extern(number, IdKind.ACTION_PROFILE)

    @staticmethod
    def _shares(where: str, ids: Sequence[int], items: Any) -> list[Share]:
        shares: list[Share] = []
        for member, item in zip(ids, items, strict=True):
            if item.weight <= 0:
                raise bad(f"{where}: weight {item.weight}: expected at least 1")
            port: int | None = item.watch or None  # The form before P4Runtime 1.3.
            if item.watch_port:
                port = decode(item.watch_port, PORT_BITS, f"{where}: watch port")
            if port is not None and not 0 <= port <= LARGEST_PORT:
                raise bad(f"{where}: watch port {port} is not in 0..{LARGEST_PORT}")
            shares.append(Share(member, item.weight, port))
        return shares

    # --- watched ports

    def _set_group(self, profile: str, group: int, shares: Sequence[Share] | None) -> None:
        """Set or (None) remove a group; members whose watched port is down get no packets."""
        watched = self._pipeline.watched
        if shares is None:
            self._engine.set_group(profile, group, None)
            watched.pop((profile, group), None)
            return
        members = self._engine.members(profile)
        for share in shares:
            if share.member not in members:
                raise ControlError("NOT_FOUND", f"profile {profile!r} has no member {share.member}")
        self._engine.set_group(profile, group, self._with_link(shares))
        if any(share.port is not None for share in shares):
            watched[profile, group] = tuple(shares)
        else:
            watched.pop((profile, group), None)

    def _with_link(self, shares: Sequence[Share]) -> list[int]:
        """Return members repeated by weight, without those whose watched port is down."""
        return [
            share.member
            for share in shares
            if share.port not in self._pipeline.down
            for _ in range(share.weight)
        ]

    def port_changed(self, port: int) -> None:
        """Update groups that watch a port to the members that now have a link."""
        for (profile, group), shares in self._pipeline.watched.items():
            if any(share.port == port for share in shares):
                self._engine.set_group(profile, group, self._with_link(shares))

    def _check_unwatched(self, profile: ExternInstance, member: int) -> None:
        """Raise FAILED_PRECONDITION for a member of a group, even one that gets no packets now."""
        for (name, group), shares in self._pipeline.watched.items():
            if name == profile.name and any(share.member == member for share in shares):
                raise ControlError(
                    "FAILED_PRECONDITION",
                    f"member {member} of profile {name!r} is in group {group}",
                )

    # --- one shot

    def check_style(self, profile: ExternInstance, *, one_shot: bool) -> None:
        """Raise INVALID_ARGUMENT if the profile's tables are programmed in the other style."""
        members = self._engine.members(profile.name)
        if any((number >= HIDDEN_IDS) != one_shot for number in members):
            style = "members and groups" if one_shot else "one-shot action sets"
            raise bad(f"profile {profile.name!r} is programmed with {style}: do not mix")

    def make_one_shot(self, table: Table, message: p4r.ActionProfileActionSet) -> OneShot:
        """Create the members and the group of an action set."""
        profile = table.implementation
        where = f"table {table.name!r}"
        if profile is None or profile.extern != "action_selector":
            raise bad(f"{where} has no action selector: it takes no action sets")
        if message.action_selection_mode or message.size_semantics:
            raise ControlError(
                "UNIMPLEMENTED", f"{where}: selection mode and size semantics are the selector's"
            )
        self.check_style(profile, one_shot=True)
        choices = [
            self._entities.choice(where, table.actions, item.action)
            for item in message.action_profile_actions
        ]
        ids = [self._new_id() for _ in choices]
        limit = max_group_size(profile)
        shares = self._shares(where, ids, message.action_profile_actions)
        size = group_size(profile, shares, where)
        if limit and size > limit:
            raise bad(f"{where}: size {size} exceeds {limit}")
        kept = p4r.ActionProfileActionSet()
        kept.CopyFrom(message)
        made = OneShot(kept, profile.name, self._new_id(), tuple(ids))
        self._install(made, choices, shares)
        return made

    def _install(self, made: OneShot, choices: list[ActionChoice], shares: list[Share]) -> None:
        done: list[int] = []
        try:
            for member, choice in zip(made.members, choices, strict=True):
                self._engine.set_member(made.profile, member, choice)
                done.append(member)
            self._set_group(made.profile, made.group, shares)
        except ControlError:
            for member in done:
                self._engine.set_member(made.profile, member, None)
            raise

    def drop_one_shot(self, note: EntryNote | None) -> None:
        """Remove the group and members of a deleted entry."""
        if note is None or note.one_shot is None:
            return
        made = note.one_shot
        self._set_group(made.profile, made.group, None)
        for member in made.members:
            self._engine.set_member(made.profile, member, None)

    def _new_id(self) -> int:
        self._next_id += 1
        return self._next_id


def group_size(profile: ExternInstance, shares: Sequence[Share], where: str) -> int:
    """Return a group's size by the selector's semantics: its weights' sum, or its members.

    INVALID_ARGUMENT for a weight beyond `@max_member_weight`, which only the latter has;
    RESOURCE_EXHAUSTED for a sum of weights beyond LARGEST_WEIGHTS.
    """
    weights = sum(share.weight for share in shares)
    size = weights
    semantics = annotation(profile, "selector_size_semantics")
    if semantics is not None and str(semantics.arguments[0]).lower() == "sum_of_members":
        size = len(shares)
        largest = annotation(profile, "max_member_weight")
        limit = int(largest.arguments[0]) if largest is not None else 0
        for share in shares:
            if limit and share.weight > limit:
                raise bad(f"{where}: weight {share.weight} exceeds {limit}")
    if weights > LARGEST_WEIGHTS:
        raise ControlError(
            "RESOURCE_EXHAUSTED", f"{where}: sum of weights {weights} exceeds {LARGEST_WEIGHTS}"
        )
    return size


def max_group_size(profile: ExternInstance) -> int:
    """Return the value of `@max_group_size`, or 0."""
    found = annotation(profile, "max_group_size")
    return int(found.arguments[0]) if found is not None and found.arguments else 0
