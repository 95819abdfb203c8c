"""How workers agree on an order, as an experiment asks for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hopsum.collectives.choices import Algorithm, Coordination
from hopsum.collectives.plan import PlanError
from hopsum.collectives.plan_checker import check_plans
from hopsum.coordination.failure import TreeError
from hopsum.coordination.tree import TreeLimits
from hopsum.experiment.description import Experiment
from hopsum.experiment.prepare import prepare, task_of
from hopsum.protocol.wire import Reduction

TRAINING = Experiment(topology="leaf-spine:2x3", workers=4, train="digits", rounds=1)


def test_the_ring_is_the_networks_or_by_number() -> None:
    rings = {}
    for coordination in Coordination:
        tree = task_of(prepare(replace(TRAINING, coordination=coordination)).job).coordination
        assert tree is not None
        rings[coordination] = tree.ring
    # Two racks are no ring.
    assert rings[Coordination.AUTO] == rings[Coordination.TREE] == ()
    assert rings[Coordination.SWITCHES] == ()
    assert rings[Coordination.RING] == (0, 1, 2, 3)


def test_reports_say_what_was_chosen() -> None:
    assert prepare(TRAINING).experiment.coordination is Coordination.TREE
    torus = replace(TRAINING, topology="torus:2x2", algorithm=Algorithm.RING)
    assert prepare(torus).experiment.coordination is Coordination.RING
    in_switches = replace(TRAINING, coordination=Coordination.SWITCHES)
    assert prepare(in_switches).experiment.coordination is Coordination.SWITCHES


def test_the_tree_keeps_the_limits_that_are_asked_for() -> None:
    """By default of 4 children and as low as possible; reports have the height that it has."""
    heights = []
    for limits in (TreeLimits(), TreeLimits(2), TreeLimits(6), TreeLimits(2, 3, 3)):
        asked = replace(TRAINING, topology="leaf-spine:1x8", workers=7, coordination_limits=limits)
        prepared = prepare(asked)
        tree = task_of(prepared.job).coordination
        assert tree is not None
        assert tree.fan_out <= limits.fan_out
        assert prepared.experiment.coordination_limits == replace(limits, height=tree.height)
        heights.append(tree.height)
    assert heights == [2, 2, 1, 2]
    high = replace(TRAINING, topology="torus:6x1", workers=6, algorithm=Algorithm.RING)
    heights = [
        prepare(replace(high, coordination_limits=limits)).experiment.coordination_limits.height
        for limits in (TreeLimits(2), TreeLimits(2, 5), TreeLimits(2, 5, 2))
    ]
    assert heights == [2, 2, 3]


def test_limits_that_cannot_be_or_have_no_tree_are_refused() -> None:
    for limits, words in (
        (TreeLimits(2, 1), "fan-out 2 and height 1 holds only 3; allow a height of 2"),
        (TreeLimits(distance=2), "less than 2 links apart; a distance of 5 works"),
    ):
        with pytest.raises(TreeError, match=words):
            prepare(replace(TRAINING, coordination_limits=limits))
    lock_step = replace(TRAINING, coordinate=False, coordination_limits=TreeLimits(2))
    with pytest.raises(PlanError, match=r"coordination-fan-out, .*expected --train with"):
        prepare(lock_step)


def test_vectors_in_the_switches_are_a_job_of_their_own() -> None:
    prepared = prepare(replace(TRAINING, coordination=Coordination.SWITCHES))
    vectors, plan = prepared.vectors, prepared.plan
    assert vectors is not None
    assert plan is not None
    assert vectors.reduction is Reduction.AND
    assert vectors.workers == plan.workers
    check_plans(prepared.network, [plan, vectors])
    ranges = {
        (part.switch, part.slot_base)
        for each in (plan, vectors)
        for tree in each.trees
        for part in tree.parts.values()
        if part.aggregate
    }
    parts = [
        part
        for each in (plan, vectors)
        for tree in each.trees
        for part in tree.parts.values()
        if part.aggregate
    ]
    assert len(ranges) == len(parts) >= 2


def test_several_trees_share_the_servers_with_the_vectors() -> None:
    asked = replace(TRAINING, servers=2, coordination=Coordination.SWITCHES)
    prepared = prepare(asked)
    assert prepared.plan is not None
    assert prepared.vectors is not None
    assert len(prepared.plan.trees) == 2
    assert [tree.server for tree in prepared.vectors.trees] == [prepared.plan.trees[0].server]


def test_vectors_need_a_job_in_the_switches() -> None:
    lock_step = replace(TRAINING, coordinate=False, coordination=Coordination.SWITCHES)
    assert prepare(lock_step).vectors is None
    ring = replace(TRAINING, algorithm=Algorithm.RING, coordination=Coordination.SWITCHES)
    with pytest.raises(PlanError, match="coordination switches with algorithm ring"):
        prepare(ring)
