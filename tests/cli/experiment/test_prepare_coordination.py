"""How workers agree on an order, as an experiment asks for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cli.experiment.description import Experiment
from cli.experiment.prepare import prepare, task_of
from collectives.choices import Algorithm, Coordination
from collectives.plan import PlanError
from collectives.plan_checker import check_plans
from protocol.wire import Reduction

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
