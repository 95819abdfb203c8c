"""Which ranks of a group are lost, where no agent knows: those that answer are not."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist

from hopsum_torch.errors import GroupLost

ANSWER_SECONDS = 5.0
"""Time for all ranks to answer: each looks for a call once a second."""


class RollCall:
    """The roll call of a group's ranks through their store, once a call has failed at one of them.

    All ranks of the group ask `lost` once a second, also while they wait for others.
    """

    def __init__(self, group: Any) -> None:
        store = dist.distributed_c10d._get_default_store()
        self._store = dist.PrefixStore(f"hopsum_roll_call/{group.group_name}/", store)
        self._rank = group.rank()
        self._ranks = dist.get_process_group_ranks(group)
        self._answers = [f"rank/{rank}" for rank in range(group.size())]

    def lost(self, seconds: float = 0.0) -> GroupLost | None:
        """Return which ranks are lost, if one has called the roll; call it if `seconds` are given.

        The numbers are those of the default group.
        """
        try:
            if seconds:
                self._store.set("called", str(self._rank))
            elif not self._store.check(["called"]):
                return None
            self._store.set(self._answers[self._rank], "")
            try:
                self._store.wait(self._answers, timedelta(seconds=ANSWER_SECONDS))
            except RuntimeError:
                silent = [
                    str(number)
                    for number, answer in zip(self._ranks, self._answers, strict=True)
                    if not self._store.check([answer])
                ]
                which = f"rank{'s' * (len(silent) > 1)} {', '.join(silent)}"
                return GroupLost(f"{which} gave no answer for {ANSWER_SECONDS:g} s: dead or hung")
            caller = self._ranks[int(self._store.get("called"))]
            return GroupLost(f"a call failed at rank {caller}, though all ranks answer")
        except RuntimeError as error:
            return GroupLost(f"the ranks' store does not answer ({error}): its process is gone")
