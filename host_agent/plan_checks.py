"""An agent's checks of a plan."""

from __future__ import annotations

from hopsum.collectives.choices import window_fault
from hopsum.collectives.plan import JobPlan, PlanError

KEY_BYTES = 32
"""Bytes of the key of a job's check lanes."""


def check_job(plan: JobPlan) -> None:
    """Raise PlanError for numbers that could cause wrong sums or deadlock agents."""
    if not (1 <= plan.job <= 0xFFFF and 1 <= plan.epoch <= 0xFFFF):
        raise PlanError(
            f"job {plan.job}, epoch {plan.epoch}: expected numbers from 1 to 65535 (a switch's "
            f"empty registers look like job 0, epoch 0)"
        )
    if fault := window_fault(plan.window):
        raise PlanError(f"job {plan.job}: {fault}")


def check_key(plan: JobPlan, key: bytes | None) -> bytes | None:
    """Return the key of a plan's check lanes; None for a plan without integrity.

    Raises PlanError if there is no key, ValueError for one of another size.
    """
    if not plan.integrity:
        return None
    if key is None:
        raise PlanError(
            f"job {plan.job}, epoch {plan.epoch}: its sums need check lanes, but its task has no "
            "key; submit it to a controller that supports integrity"
        )
    if len(key) != KEY_BYTES:
        raise ValueError(f"a job's key of {len(key)} bytes: expected {KEY_BYTES}")
    return key


def check_same_job(old: JobPlan, new: JobPlan) -> None:
    """Raise PlanError if a new epoch changes what is fixed for the life of a job."""

    def fixed(plan: JobPlan) -> dict[str, object]:
        return {
            "job": plan.job,
            "window": plan.window,
            "lanes": plan.lanes,
            "integrity": plan.integrity,
            "reduction": plan.reduction,
            "trees": [tree.tree for tree in plan.trees],
            "roots at workers": [tree.server for tree in plan.trees if tree.server in plan.workers],
            "period": plan.period,
            # A job with boundaries changes its partition only there, not with an epoch.
            "shares and parts": None if plan.period else plan.cut,
        }

    before, after = fixed(old), fixed(new)
    for key, value in before.items():
        if after[key] != value:
            raise PlanError(
                f"job {old.job}, epoch {new.epoch}: {key} {after[key]}; expected {value} as in "
                f"epoch {old.epoch}, it is fixed for the life of a job"
            )
