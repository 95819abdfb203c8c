"""The frames that a server receives and sends under one plan."""

from __future__ import annotations

from dataclasses import replace

from hopsum.collectives.plan import JobPlan, Results, TreePlan
from hopsum.host_agent.codec import UNUSUAL_UPWARD, Form, Matcher, address_of
from hopsum.host_agent.datapath.library import Matching
from hopsum.network.model import Network
from hopsum.protocol.wire import (
    REPLICATED_IP,
    REPLICATED_MAC,
    Address,
    Flag,
    Header,
    Hop,
    Kind,
    Reduction,
)


class ServerForms:
    """Forms of the frames of one tree's server.

    `contributions` and `requests` match what it receives; contributions' lanes begin at `lanes_at`.
    `unicast`: results, by worker; `replicated`: for all at once. `questions`: for single
    contributions, by worker, in a job with check lanes.
    """

    def __init__(self, plan: JobPlan, tree: TreePlan, network: Network) -> None:
        own = address_of(network, tree.server)

        def header(kind: Kind, worker: int = 0) -> Header:
            return Header(
                kind,
                plan.job,
                tree.tree,
                plan.epoch,
                0,
                worker=worker,
                weight=len(plan.workers),
                reduction=plan.reduction,
            )

        def matching(
            header: Header, stack: tuple[Hop, ...], unusual_flags: int, *, weighed: bool = False
        ) -> Matching:
            pair = []
            for lanes, reduction in ((plan.lanes, plan.reduction), (0, Reduction.NONE)):
                form = Form(own, own, replace(header, reduction=reduction), stack, lanes)
                pair.append(Matcher(form.template, weighed=weighed, unusual_flags=unusual_flags))
            self._kept += pair
            return Matching.of(*pair)

        self._kept: list[Matcher] = []
        """Owners of the arrays that matchings point to."""
        up = header(Kind.CONTRIBUTION)
        self.lanes_at = Form(own, own, up, (Hop(),), plan.lanes).lanes_start
        if tree.singles:
            up = replace(up, weight=1, flags=int(Flag.BYPASS))
        self.contributions = matching(up, (Hop(),), UNUSUAL_UPWARD, weighed=tree.singles)
        self.requests = matching(header(Kind.REQUEST), (), 0)

        def unicast(worker: int, stack: tuple[Hop, ...]) -> Form:
            to = address_of(network, plan.workers[worker])
            return Form(own, to, header(Kind.RESULT, worker), stack, plan.lanes)

        kept = [tuple(replace(hop, clear=False) for hop in stack) for stack in tree.down]
        # Where results are replicated, only those clear.
        down = kept if plan.results is Results.REPLICATED else tree.down
        self.unicast = [unicast(worker, stack) for worker, stack in enumerate(down)]
        asked = kept if plan.integrity else []
        self.questions = [unicast(worker, stack) for worker, stack in enumerate(asked)]
        group = Address(REPLICATED_MAC, REPLICATED_IP)
        self.replicated = Form(own, group, header(Kind.REPLICATED), (), plan.lanes)
