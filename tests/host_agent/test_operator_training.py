from __future__ import annotations

import numpy as np
import pytest

from hopsum.collectives.plan import DataType
from hopsum.host_agent.digits import Digits, DigitsTraining
from hopsum.host_agent.operator_training import NAMES, OperatorTraining
from hopsum.host_agent.workload import WorkloadSpec

SPEC = WorkloadSpec("digits", 3, 0, 1, DataType.FLOAT32, seed=4, coordinate=True)


def test_operators_are_the_parts_of_the_gradient() -> None:
    assert SPEC.step_sizes() == [64 * 512, 512, 512 * 10, 10]
    assert SPEC.steps == Digits.STEPS_PER_EPOCH
    assert len(SPEC.tensor_sizes()) == 4 * SPEC.steps
    workers = [OperatorTraining(SPEC, worker, None) for worker in range(3)]
    for training in workers:
        training.begin_step()
    whole = DigitsTraining(SPEC.seed, 1).gradient(0, Digits.BATCH)
    parts = [sum(training.tensor(name) for training in workers) for name in NAMES]
    np.testing.assert_allclose(np.concatenate(parts), whole, atol=1e-6)


def test_any_order_gives_the_same_training_and_is_kept() -> None:
    losses = []
    for names in (NAMES, NAMES[::-1]):
        workers = [OperatorTraining(SPEC, w, None) for w in range(3)]
        while None not in [training.begin_step() for training in workers]:
            for name in names:
                total = np.sum([training.tensor(name) for training in workers], axis=0)
                ended = [training.take_result(name, total) for training in workers]
                assert set(ended) == {name == names[-1]}
            assert workers[0].order == list(names)
        assert all(training.verdict().wrong == 0 for training in workers)
        losses.append(workers[0].outcome().losses)
    assert losses[0] == losses[1]


def test_workers_are_ready_in_orders_of_their_own() -> None:
    orders = set()
    for worker in range(3):
        operators = OperatorTraining(SPEC, worker, None).begin_step()
        assert operators is not None
        assert operators == OperatorTraining(SPEC, worker, None).begin_step()
        orders.add(tuple(operator.name for operator in operators))
        assert sorted(operator.name for operator in operators) == sorted(NAMES)
    assert len(orders) > 1


def test_a_wrong_sum_is_seen_and_a_missing_one_is_an_error() -> None:
    training = OperatorTraining(SPEC, 0, None)
    training.begin_step()
    training.take_result("output biases", training.tensor("output biases") + np.float32(1))
    assert training.verdict().wrong == Digits.CLASSES
    with pytest.raises(RuntimeError, match="lacks the sums of hidden biases, hidden weights"):
        training.begin_step()
