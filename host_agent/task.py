"""What a job does, as its description crosses from the controller to the agents."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

from collectives.algorithms.catalogue import MULTI_TREE, SCHEDULES
from collectives.algorithms.rooted import RootedTree
from collectives.algorithms.trees import SharedTree
from collectives.choices import DEFAULT_FORM, FormOptions
from coordination.tree import CoordinationTree
from host_agent.options import WorkerOptions
from host_agent.workload import WorkloadSpec
from protocol.errors import InputError


class TaskError(InputError):
    """A job's description that agents cannot follow; the message says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Task:
    """The tensors of a job, and how they are summed; every agent of the job has the same.

    `schedule`: the algorithm by which the workers sum among themselves, of a plan without trees and
    parts of hosts. `options` None: those that suit the plan (`timing.suitable_options`). `trees`:
    those of the algorithm multi-tree; `form`: what is asked of level-wise. `coordination`: the tree
    over the plan's workers, by index and named like them, by which they agree on an order, where
    the workload wants that. `vectors`: the job that combines their bit vectors in the switches;
    None: they go over the tree, or its ring.
    """

    workload: WorkloadSpec
    schedule: str | None = None
    options: WorkerOptions | None = None
    trees: tuple[SharedTree, ...] = ()
    coordination: CoordinationTree | None = None
    vectors: int | None = None
    form: FormOptions = DEFAULT_FORM

    def to_json(self) -> str:
        """As one line of JSON."""
        return json.dumps(
            {
                "workload": self.workload.to_json(),
                "schedule": self.schedule,
                "options": None if self.options is None else asdict(self.options),
                "trees": [
                    [each.tree.root, dict(each.tree.parents), str(each.share)]
                    for each in self.trees
                ],
                "coordination": None if self.coordination is None else asdict(self.coordination),
                "vectors": self.vectors,
                "level_wise": self.form.to_dict(),
            }
        )

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Task:
        """From the decoded JSON, of which all but the workload may be missing. Raises TaskError."""
        try:
            options, schedule = values.get("options"), values.get("schedule")
            if schedule not in (None, MULTI_TREE, *SCHEDULES):
                raise ValueError(
                    f"schedule {schedule!r:.40}: expected one of {', '.join(SCHEDULES)}"
                )
            task = cls(
                WorkloadSpec.from_json(values["workload"]),
                schedule,
                None if options is None else WorkerOptions(**options),
                tuple(
                    SharedTree(RootedTree(root, parents), Fraction(share))
                    for root, parents, share in values.get("trees", ())
                ),
                _coordination(values.get("coordination")),
                _job(values.get("vectors")),
                _form(values.get("level_wise")),
            )
        except (AttributeError, KeyError, TypeError, ValueError, ZeroDivisionError) as error:
            raise TaskError(
                f"the job's task cannot be read ({type(error).__name__}: {error}); expected JSON "
                'with "workload" (a WorkloadSpec as JSON text), and perhaps "schedule" (an '
                'algorithm), "options" (WorkerOptions), "trees" (root, parents and share of each), '
                '"level_wise" (form: auto, levels or flat; siblings: ring or hierarchical), '
                '"coordination" (names, parents and ring of a tree)'
            ) from None
        return task


def _job(value: object) -> int | None:
    if value is None or (type(value) is int and 0 < value <= 0xFFFF):
        return value
    raise ValueError(f"vectors {value!r:.40}: expected the number of a job")


def _form(values: object) -> FormOptions:
    return DEFAULT_FORM if values is None else FormOptions.from_dict(values)


def _coordination(values: Mapping[str, Any] | None) -> CoordinationTree | None:
    if values is None:
        return None
    return CoordinationTree(**{key: tuple(members) for key, members in values.items()})
