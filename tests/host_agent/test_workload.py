from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hopsum.collectives.plan import DataType
from hopsum.collectives.schedule import part
from hopsum.collectives.task_messages import workload_from, workload_message
from hopsum.collectives.workload import KEPT_BYTES, WIRE_BITS, WorkloadError
from hopsum.host_agent.digits import Digits, DigitsTraining, train_alone
from hopsum.host_agent.elements import DTYPES, element_of, widths_of
from hopsum.host_agent.numbers import as_float32
from hopsum.host_agent.workload import (
    TrainingWorkload,
    WorkloadSpec,
    call_seconds,
    make_workload,
    random_tensor,
    reduce_seconds,
    verify_sum,
)
from tests.host_agent.test_numbers import rounded
from tests.support.protocol_world import star_plan


def test_a_spec_crosses_as_a_message() -> None:
    spec = WorkloadSpec("random", 4, 10, 2, DataType.INT32, 7)
    process = WorkloadSpec("process", 2, 0, 0, DataType.FLOAT32, 0, coordinate=True)
    narrow = replace(spec, dtype=DataType.FLOAT32, wire_bits=16)
    for each in (spec, process, replace(process, ranks=("h1", "h2", "h1")), narrow):
        assert workload_from(workload_message(each)) == each
    assert spec.tensor_sizes() == [10, 10]


def test_random_tensors_repeat_and_differ_between_workers() -> None:
    spec = WorkloadSpec("random", 4, 1000, 2, DataType.FLOAT32, 7)
    assert (random_tensor(spec, 1, 0) == random_tensor(spec, 1, 0)).all()
    assert (random_tensor(spec, 1, 0) != random_tensor(spec, 2, 0)).any()
    assert (random_tensor(spec, 1, 0) != random_tensor(spec, 1, 1)).any()


def test_int32_sums_of_random_tensors_fit() -> None:
    spec = WorkloadSpec("random", 8, 10_000, 1, DataType.INT32, 7)
    total = sum(random_tensor(spec, w, 0).astype(np.int64) for w in range(8))
    assert np.abs(total).max() < 2**31


def test_a_wrong_element_is_counted() -> None:
    for dtype, wrong_by in ((DataType.INT32, 1), (DataType.FLOAT32, 0.5)):
        spec = WorkloadSpec("random", 2, 100, 1, dtype, 7)
        workload = make_workload(spec, 0, None)
        tensors = [random_tensor(spec, w, 0) for w in range(2)]
        assert (workload.next_tensor() == tensors[0]).all()
        result = tensors[0] + tensors[1]
        result[17] += wrong_by
        workload.take_result(result)
        assert workload.next_tensor() is None
        assert workload.verdict().wrong == 1
        assert workload.verdict().checked == 100


@pytest.mark.parametrize("dtype", list(DataType))
def test_sums_of_every_type_are_checked(dtype: DataType) -> None:
    """An element that is off by one in 64 is found, or by one."""
    spec = WorkloadSpec("random", 2, 100, 1, dtype, 7)
    tensors = [random_tensor(spec, w, 0) for w in range(2)]
    assert all(tensor.dtype == DTYPES[dtype] for tensor in tensors)
    if not dtype.scaled:
        result = tensors[0] + tensors[1]
        result[17] += 1
        assert (verify_sum(tensors, result, star_plan(2)[0]).wrong) == 1
        return
    exact = sum(as_float32(tensor).astype(np.float64) for tensor in tensors)
    result = rounded(exact, DTYPES[dtype])
    assert verify_sum(tensors, result, star_plan(2)[0]).wrong == 0
    exact[17] += np.abs(exact).max() / 64
    assert verify_sum(tensors, rounded(exact, DTYPES[dtype]), star_plan(2)[0]).wrong == 1


@pytest.mark.parametrize(
    ("dtype", "bits"), [(DataType.INT32, 16), (DataType.FLOAT32, 8), (DataType.INT8, 16)]
)
def test_types_have_no_other_widths(dtype: DataType, bits: int) -> None:
    with pytest.raises(WorkloadError, match=f"wire-bits {bits} of {dtype}"):
        WorkloadSpec("random", 2, 100, 1, dtype, 7, wire_bits=bits)


def test_widths_are_those_of_workers() -> None:
    for dtype, bits in WIRE_BITS.items():
        element = element_of(DTYPES[dtype])
        assert element is not None
        assert [each.bits for each in widths_of(element)] == list(bits)


def test_a_nan_is_wrong() -> None:
    tensors = [np.ones(3, np.float32)] * 2
    result = np.array([2, np.nan, 2], np.float32)
    assert verify_sum(tensors, result, None).wrong == 1


def test_call_seconds_count_from_the_last_start_to_the_last_end() -> None:
    assert reduce_seconds([[(0, 5), (6, 9)], [(1, 4), (5, 8)]]) == pytest.approx(4 + 3)


def test_calls_that_a_worker_has_no_times_of_do_not_count() -> None:
    """Reports of very many tensors come without times, maybe not of all workers."""
    assert call_seconds([[(0, 5), (6, 9)], []]) == []
    assert reduce_seconds([[], [(1, 4)]], [[(1, 4)]]) == 3.0


@pytest.mark.slow
def test_parts_of_a_gradient_add_up_to_the_whole() -> None:
    training = DigitsTraining(seed=1, epochs=1)
    whole = training.gradient(0, Digits.BATCH)
    parts = [training.gradient(start, start + 16) for start in range(0, Digits.BATCH, 16)]
    assert whole.shape == (Digits.PARAMETERS,)
    np.testing.assert_allclose(np.sum(parts, axis=0), whole, rtol=1e-4, atol=1e-7)


def test_the_gradient_is_that_of_the_loss() -> None:
    training = DigitsTraining(seed=1, epochs=1)
    # Of all images, as the loss is; a gradient is divided by the images of a batch.
    gradient = training.gradient(0, Digits.TRAIN_IMAGES)
    gradient *= np.float32(Digits.BATCH / Digits.TRAIN_IMAGES)

    def loss(step: float) -> float:
        moved = DigitsTraining(seed=1, epochs=1)
        moved.parameters += np.float32(step) * gradient
        return moved.loss()

    slope = (loss(1e-2) - loss(-1e-2)) / 2e-2
    assert slope == pytest.approx(float(gradient @ gradient), rel=0.02)


def test_training_finds_the_digits() -> None:
    training = train_alone(seed=1, epochs=10)
    assert training.accuracy() > 0.95
    assert training.losses[-1] < training.losses[0]


def test_time_that_calls_share_counts_once() -> None:
    one = [(0.0, 3.0), (1.0, 2.0), (2.0, 5.0), (8.0, 9.0)]
    other = [(1.0, 3.0), (1.0, 2.0), (1.0, 5.0), (7.0, 9.0)]
    assert reduce_seconds([one, other]) == (3.0 - 1.0) + 0.0 + (5.0 - 3.0) + (9.0 - 8.0)


def test_time_that_jobs_share_counts_once() -> None:
    first, second = [[(4.0, 6.0), (8.0, 9.0)]], [[(1.0, 2.0), (5.0, 7.0)]]
    assert reduce_seconds(first, second) == 1.0 + 3.0 + 1.0
    assert reduce_seconds() == 0.0


@pytest.mark.parametrize("kept", [0, KEPT_BYTES])
def test_sums_of_a_training_are_checked_against_its_own_steps(
    monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    """At once or at the end, and after a wrong one too: all that followed was computed with it."""
    monkeypatch.setattr("hopsum.host_agent.workload.KEPT_BYTES", kept)
    spec = WorkloadSpec("digits", 2, 0, 1, DataType.FLOAT32, 1)
    workload, replica = TrainingWorkload(spec, 0, None), DigitsTraining(seed=1, epochs=1)
    halves = [part(0, Digits.BATCH, 2, worker) for worker in range(2)]
    steps = 0
    while (tensor := workload.next_tensor()) is not None:
        own, other = (replica.gradient(*half) for half in halves)
        np.testing.assert_array_equal(tensor, own)
        result = own + other
        if steps == 3:
            result[:7] += 1
        workload.take_result(result)
        replica.step(result)
        steps += 1
    verdict = workload.verdict()
    assert (verdict.checked, verdict.wrong) == (steps * Digits.PARAMETERS, 7)
    assert workload.outcome().losses == replica.losses
