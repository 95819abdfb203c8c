"""Action profiles: members, groups, and entries programmed in one shot (P4Runtime 1.5, 9.2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from finsy.proto import p4r

from p4switch.ir import ActionChoice, ExternInstance, Table
from p4switch.p4runtime.entities import HIDDEN_IDS, UpdateKind, bad, check_known
from p4switch.p4runtime.ids import IdKind
from p4switch.p4runtime.names import annotation
from p4switch.p4runtime.pipeline import EntryNote, OneShot, Pipeline
from p4switch.targets.v1model.engine import ControlError


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
            self._engine.set_group(profile.name, number, None)
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
        weighted = self._weighted(where, ids, message.members, message.max_size)
        self._engine.set_group(profile.name, number, weighted)
        kept = p4r.ActionProfileGroup()
        kept.CopyFrom(message)
        notes[profile.name, number] = kept

    def _profile(self, number: int) -> ExternInstance:
        return self._entities.extern(number, IdKind.ACTION_PROFILE)

    @staticmethod
    def _weighted(where: str, ids: Sequence[int], items: Any, max_size: int) -> list[int]:
        """Ids repeated by their weights."""
        weighted: list[int] = []
        for number, item in zip(ids, items, strict=True):
            if item.weight <= 0:
                raise bad(f"{where}: weight {item.weight}: expected at least 1")
            if item.WhichOneof("watch_kind") is not None and (item.watch or item.watch_port):
                raise ControlError("UNIMPLEMENTED", f"{where}: watch ports are not supported")
            weighted += [number] * item.weight
        if max_size and len(weighted) > max_size:
            raise ControlError(
                "RESOURCE_EXHAUSTED",
                f"{where}: the weights' sum {len(weighted)} exceeds its size {max_size}",
            )
        return weighted

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
            raise bad(f"{where} has no action selector: an action set is not for it")
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
        weighted = self._weighted(where, ids, message.action_profile_actions, 0)
        if limit and len(weighted) > limit:
            raise bad(f"{where}: the weights' sum {len(weighted)} exceeds {limit}")
        kept = p4r.ActionProfileActionSet()
        kept.CopyFrom(message)
        made = OneShot(kept, profile.name, self._new_id(), tuple(ids))
        self._install(made, choices, weighted)
        return made

    def _install(self, made: OneShot, choices: list[ActionChoice], weighted: list[int]) -> None:
        done: list[int] = []
        try:
            for number, choice in zip(made.members, choices, strict=True):
                self._engine.set_member(made.profile, number, choice)
                done.append(number)
            self._engine.set_group(made.profile, made.group, weighted)
        except ControlError:
            for number in done:
                self._engine.set_member(made.profile, number, None)
            raise

    def drop_one_shot(self, note: EntryNote | None) -> None:
        """Remove the group and members behind an entry that is gone."""
        if note is None or note.one_shot is None:
            return
        made = note.one_shot
        self._engine.set_group(made.profile, made.group, None)
        for number in made.members:
            self._engine.set_member(made.profile, number, None)

    def _new_id(self) -> int:
        self._next_id += 1
        return self._next_id


def max_group_size(profile: ExternInstance) -> int:
    """Return what `@max_group_size` says, or 0."""
    found = annotation(profile, "max_group_size")
    return int(found.arguments[0]) if found is not None and found.arguments else 0
