"""The model at small bounds: nothing breaks, and without a rule of the protocol something does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from hopsum.collectives.plan import Results
from hopsum.host_agent import server, stream
from hopsum.host_agent.datapath.library import compiled, program
from tests.model.components import Automaton, new_switch, set_plan
from tests.model.explore import Violated, breadth_first, random_walks
from tests.model.p4_traces import follow
from tests.model.protocol_model import Budget, Setting
from tests.model.settings import (
    ONE_WAY,
    ROOTED_STAR,
    STAR,
    STAR_OF_3,
    TWO_LEVELS,
    beyond,
    growing,
    setting,
)
from tests.oracles.reference_switch import ReferenceSwitch
from tests.support.search import examples

SMALL = [
    setting("star: loss, reboot", STAR, {}, ["r"], Budget(1, reboots=1)),
    setting("star: loss, copy", STAR, {}, ["r"], Budget(1, 1)),
    setting("no sums: loss, copy", STAR, {}, [""], Budget(1, 1), 2, results=Results.UNICAST),
    setting("star: new server", STAR, {}, ["r", "r"], Budget(), 1, new_servers=[2]),
    setting("two levels: loss", TWO_LEVELS, {"a": "r"}, [["a", "r"]], Budget(1)),
    growing("a worker joins: loss", STAR, {}, ["r", "r"], Budget(1)),
    setting("two levels: reboot", TWO_LEVELS, {"a": "r"}, [["a", "r"]], Budget(reboots=1)),
    *(
        setting(f"star: loss, copy, {bits} bits", STAR, {}, ["r"], Budget(1, 1), bits=bits)
        for bits in (16, 8)
    ),
    *(
        setting(f"rooted star: {what}", ROOTED_STAR, {}, ["r"], budget, 1, reductions=ONE_WAY)
        for what, budget in (
            ("loss, reboot", Budget(1, reboots=1)),
            ("loss, copy", Budget(1, 1)),
        )
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize("small", SMALL, ids=lambda small: small.name)
def test_nothing_breaks_within_a_small_budget(small: Setting) -> None:
    explored = breadth_first(small)
    assert explored.complete
    assert explored.states > 100
    assert follow(explored.model) > 10


@pytest.mark.slow
def test_nothing_breaks_on_random_walks() -> None:
    for large in beyond():
        explored = random_walks(large, examples(1, of=20))
        assert follow(explored.model) > 20


def test_a_switch_that_has_missed_a_plan_is_in_a_state_of_its_own() -> None:
    """It drops replicated results of that plan's epoch, which others still copy."""
    plans = next(beyond()).plans
    switches = []
    for held in (plans, plans[::2]):
        switch = new_switch(held[0], "b", 8)
        for plan in held[1:]:
            set_plan(switch, plan, "b")
        switches.append(switch)
    automaton = Automaton(())
    assert [automaton.add(switch) for switch in switches] == [0, 1]


# -- Without a rule


def duplicates_are_added(monkeypatch: pytest.MonkeyPatch) -> None:
    """A switch that counts its children's packets, and not its children."""
    contribution = ReferenceSwitch._contribution

    def mutated(
        self: ReferenceSwitch,
        packet: Any,
        frame: Any,
        port: int,
        slot: Any,
        *rest: Any,
        **more: Any,
    ) -> Any:
        if slot.is_of(packet) and not slot.cleared and not slot.complete:
            other = min(set(range(slot.fan_in)) - slot.children)
            hop = replace(packet.hops[0], child=other)
            packet = replace(packet, hops=(hop, *packet.hops[1:]))
        return contribution(self, packet, frame, port, slot, *rest, **more)

    monkeypatch.setattr(ReferenceSwitch, "_contribution", mutated)


def clears_name_no_fragment(monkeypatch: pytest.MonkeyPatch) -> None:
    def mutated(self: ReferenceSwitch, packet: Any, slot: Any, *, clears: bool) -> bool:
        slot.cleared |= clears
        return clears

    monkeypatch.setattr(ReferenceSwitch, "_clear", mutated)


def change(monkeypatch: pytest.MonkeyPatch, *changes: tuple[str, str]) -> None:
    """Compile the data path with other text in some places, for as long as a violation takes."""
    monkeypatch.setenv("P4SWITCH_CFLAGS", "-O0")
    text = program()
    for before, after in changes:
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    changed = compiled(text)
    for module in (server, stream):
        monkeypatch.setattr(module, "library", lambda: changed)


def partial_sums_outlive_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hazard S2."""
    kept = """
        memcpy(s->sums, before->sums, (size_t)s->window * sizeof *s->sums);
        memcpy(s->sum_lanes, before->sum_lanes, (size_t)s->window * lane_bytes(s));
    """
    history = "    memcpy(s->finished_lanes, before"
    change(monkeypatch, (history, kept + history))


def finished_fragments_are_not_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hazard L7."""
    head = "answer_worker(struct server *s, struct output *out, const struct contribution *c)\n{\n"
    repeat = "    send_finished(s, out, form, slot, s->tos | URGENT, SEQUENCED | REPAIR);\n"
    change(monkeypatch, (head, head + "    return;\n"), (repeat, "    if (!s)\n" + repeat))


NO_HANDOVER = "    if (!kept)\n        return;\n", "    return;\n"


def results_are_not_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hazard L3."""
    change(monkeypatch, NO_HANDOVER)


def history_ends_with_its_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hazard L2. Workers' last results would make up for it, but they may be lost."""
    kept = "        s->finished[slot] = before->finished[slot];\n"
    change(monkeypatch, NO_HANDOVER, (kept, ""))


FEWER_SUMS = setting("fewer sums", TWO_LEVELS, {"a": "r"}, [["a"], []], Budget(), 1)
ROOTED_AGAIN = setting("rooted", ROOTED_STAR, {}, ["r"], Budget(again=1), 1, reductions=ONE_WAY[:1])
LATE = setting("late", STAR, {}, ["r"], Budget(0, 1), 3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mutate", "where"),
    [
        (duplicates_are_added, setting("again", STAR, {}, ["r"], Budget(again=1), 1)),
        (duplicates_are_added, ROOTED_AGAIN),
        (clears_name_no_fragment, LATE),
        (partial_sums_outlive_an_epoch, FEWER_SUMS),
        (finished_fragments_are_not_answered, SMALL[0]),
        (history_ends_with_its_epoch, setting("new", STAR, {}, ["r", "r"], Budget(1), 1)),
        (results_are_not_handed_over, SMALL[3]),
    ],
    ids=lambda value: value.__name__ if callable(value) else value.name,
)
def test_without_a_rule_something_breaks(
    mutate: Callable[[pytest.MonkeyPatch], None],
    where: Setting,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mutate(monkeypatch)
    with pytest.raises(Violated) as error:
        breadth_first(where, 30_000)
    assert len(str(error.value).splitlines()) > 1


# -- Without a rule of how a worker joins


def test_a_worker_cannot_join_while_tensors_are_unfinished() -> None:
    """They are sent again under the new epoch, and wait for it in the switches."""
    anywhere = growing(
        "anywhere", STAR_OF_3, {}, ["r", "r"], Budget(), boundary=lambda _reached: True
    )
    with pytest.raises(Violated, match="worker 0 has"):
        breadth_first(anywhere, 30_000)


@pytest.mark.slow
def test_a_tensor_is_torn_where_a_worker_that_has_joined_leaves() -> None:
    """Each fragment is right, and the same at all."""
    torn = growing("torn", STAR, {}, ["r"] * 3, Budget(crashes=1), fragments=2)
    with pytest.raises(Violated, match=r"tensor 1 has sums of \{1, 2\} workers"):
        breadth_first(torn, 30_000)
