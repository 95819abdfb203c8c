"""The frames that a server receives and sends under one plan."""

from __future__ import annotations

from dataclasses import replace

from hopsum.collectives.plan import JobPlan, Results, TreePlan
from hopsum.host_agent.codec import UNUSUAL_UPWARD, Form, Matcher, address_of
from hopsum.network.model import Network
from hopsum.protocol.wire import (
    REPLICATED_IP,
    REPLICATED_MAC,
    Address,
    Flag,
    Header,
    Hop,
    Kind,
    frame_template,
)


class ServerForms:
    """Forms of the frames of one tree's server, which carry the IP ToS byte `tos`.

    `up`: contributions as they arrive; `matcher` knows them. `unicast`: results, by worker;
    `replicated`: for all at once. `questions`: for single contributions, by worker. `request`: what
    neighbours ask for repairs with.
    """

    def __init__(self, plan: JobPlan, tree: TreePlan, network: Network, tos: int) -> None:
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

        self.up = Form(own, own, header(Kind.CONTRIBUTION), (Hop(),), plan.lanes)
        if tree.singles:
            single = replace(header(Kind.CONTRIBUTION), weight=1, flags=int(Flag.BYPASS))
            template = frame_template(own, own, single, (Hop(),), plan.lanes)
            self.matcher = Matcher(template, weighed=True, unusual_flags=UNUSUAL_UPWARD)
        else:
            self.matcher = Matcher(self.up.template, unusual_flags=UNUSUAL_UPWARD)

        def unicast(worker: int, stack: tuple[Hop, ...]) -> Form:
            to = address_of(network, plan.workers[worker])
            return Form(own, to, header(Kind.RESULT, worker), stack, plan.lanes, tos)

        kept = [tuple(replace(hop, clear=False) for hop in stack) for stack in tree.down]
        # Where results are replicated, only those clear.
        down = kept if plan.results is Results.REPLICATED else tree.down
        self.unicast = [unicast(worker, stack) for worker, stack in enumerate(down)]
        self.questions = [unicast(worker, stack) for worker, stack in enumerate(kept)]
        group = Address(REPLICATED_MAC, REPLICATED_IP)
        self.replicated = Form(own, group, header(Kind.REPLICATED), (), plan.lanes, tos)
        self.request = Form(own, own, header(Kind.REQUEST), (), plan.lanes)

    def mark(self, tos: int) -> None:
        """Set the IP ToS byte of frames to send."""
        for form in (self.replicated, *self.unicast, *self.questions):
            form.mark(tos)
