"""The scenarios to explore: small jobs, and budgets of faults."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from hopsum.collectives.plan import JobPlan, Results
from hopsum.network.model import Network
from hopsum.protocol.wire import Reduction
from tests.model.components import Tensors
from tests.model.protocol_model import Budget, Setting
from tests.support.protocol_world import SERVER, make_tree, tree_plan

STAR = {"w0": "r", "w1": "r", "ps": "r"}
STAR_OF_3 = {"w0": "r", "w1": "r", "w2": "r", "ps": "r"}
TWO_LEVELS = {"w0": "a", "w1": "a", "w2": "r", "ps": "r"}
STAR_OF_4 = {"w0": "r", "w1": "r", "w2": "r", "w3": "r", "ps": "r"}
TWO_PAIRS = {"w0": "a", "w1": "a", "w2": "b", "w3": "b", "ps": "r"}
ROOTED_STAR = {"w0": "r", "w1": "r", "w2": "r"}
ROOTED_PAIR = {"w0": "r", "w1": "a", "w2": "a"}
ROOTED_LEVELS = {"w0": "r", "w1": "a", "w2": "a", "w3": "r"}
THREE_LEVELS = {"w0": "a", "w1": "a", "w2": "b", "w3": "r", "ps": "r"}
ONE_WAY = (Reduction.REDUCE_SUM, Reduction.BROADCAST)
"""Of rooted trees: lanes in one direction."""


def plans(
    access: dict[str, str],
    parents: dict[str, str],
    sums: Sequence[Sequence[str]],
    window: int = 1,
    results: Results = Results.REPLICATED,
) -> tuple[Network, tuple[JobPlan, ...]]:
    """Plans of epochs 1, 2, ..., each with the switches that sum in it.

    Worker 0 is the server if there is no other.
    """
    server = SERVER if SERVER in access else "w0"
    first, network = tree_plan(
        access, parents, sums[0], window=window, server=server, results=results
    )
    made = [first]
    for epoch, summing in enumerate(sums[1:], start=2):
        tree = make_tree(network, first.workers, parents, summing, window=2 * window, server=server)
        made.append(replace(first, epoch=epoch, trees=(tree,)))
    return network, tuple(made)


def setting(
    name: str,
    access: dict[str, str],
    parents: dict[str, str],
    sums: Sequence[Sequence[str]],
    budget: Budget,
    fragments: int = 2,
    window: int = 1,
    new_servers: Sequence[int] = (),
    results: Results = Results.REPLICATED,
    reductions: Sequence[Reduction] = (Reduction.SUM,),
    bits: int = 32,
) -> Setting:
    """Return a setting by its parts. `fragments`: of a tensor by each of the reductions."""
    network, made = plans(access, parents, sums, window, results)
    tensors = Tensors(fragments, tuple(reductions), bits)
    return Setting(name, network, made, tensors, budget, frozenset(new_servers))


def growing(
    name: str,
    access: dict[str, str],
    parents: dict[str, str],
    sums: Sequence[Sequence[str]],
    budget: Budget,
    fragments: int = 1,
    window: int = 1,
    new_servers: Sequence[int] = (),
    results: Results = Results.REPLICATED,
    tensors: int = 2,
    boundary: Callable[[Iterable[bool]], bool] = all,
) -> Setting:
    """Return a setting whose last worker joins with epoch 2, after the first tensor.

    Epoch 3 follows once that worker has crashed.
    """
    network, made = plans(access, parents, sums, window, results)
    [*hosts] = made[0].workers
    counts = [len(hosts) - 1, len(hosts), len(hosts) - 1][: len(made)]
    grown = []
    for plan, summing, count in zip(made, sums, counts, strict=True):
        server = plan.trees[0].server
        tree = make_tree(network, hosts[:count], parents, summing, window=2 * window, server=server)
        grown.append(replace(plan, workers=tuple(hosts[:count]), trees=(tree,)))
    work = Tensors(fragments, (Reduction.SUM,) * tensors, grown_from=1, counts=tuple(counts))
    servers = frozenset(new_servers)
    return Setting(name, network, tuple(grown), work, budget, servers, boundary)


def exhaustive() -> Iterator[Setting]:
    """Settings of which all states are visited."""
    up = {"a": "r"}
    for results in Results:
        for what, budget, fragments in (
            ("a loss, sent again", Budget(1, 0, 1), 2),
            ("a copy, sent again", Budget(0, 1, 1), 2),
            ("a reboot, sent again", Budget(0, 0, 1, reboots=1), 1),
            ("bypass and a question", Budget(0, 0, 0, 1, 1), 2),
            ("a loss, a copy and a reboot", Budget(1, 1, 0, reboots=1), 2),
        ):
            name = f"star of 2, {results}: {what}"
            yield setting(name, STAR, {}, ["r"], budget, fragments, results=results)
    yield setting("star of 2, window 2: a loss", STAR, {}, ["r"], Budget(1), 3, 2)
    for what, budget, fragments in (
        ("two losses", Budget(2), 2),
        ("a loss, a copy, sent again", Budget(1, 1, 1), 1),
        ("a loss, bypass and a question", Budget(1, 0, 0, 1, 1), 1),
    ):
        name = f"star of 2, no sums, unicast: {what}"
        yield setting(name, STAR, {}, [""], budget, fragments, results=Results.UNICAST)
    yield setting(
        "star of 2, no sums, window 2: a loss",
        STAR,
        {},
        [""],
        Budget(1),
        2,
        2,
        results=Results.UNICAST,
    )
    yield setting("star of 2: a plan without sums", STAR, {}, ["r", ""], Budget(1), 1)
    yield setting("star of 2: a plan, a loss", STAR, {}, ["r", "r"], Budget(1), 1)
    yield setting(
        "star of 2: a plan, a loss, unicast",
        STAR,
        {},
        ["r", "r"],
        Budget(1),
        1,
        results=Results.UNICAST,
    )
    yield setting("star of 2: a plan, a reboot", STAR, {}, ["r", "r"], Budget(reboots=1), 1)
    yield setting("star of 2: a new server, a loss", STAR, {}, ["r", "r"], Budget(1), 1, 1, [2])
    yield setting("star of 2: a new server, longer", STAR, {}, ["r", "r"], Budget(), 2, 1, [2])
    yield setting("two levels: two losses", TWO_LEVELS, up, [["a", "r"]], Budget(2))
    yield setting(
        "two levels: a reboot, a loss", TWO_LEVELS, up, [["a", "r"]], Budget(1, reboots=1)
    )
    yield setting("two levels: fewer sums", TWO_LEVELS, up, [["a", "r"], ["r"]], Budget(), 1)
    yield setting("two levels: a new plan", TWO_LEVELS, up, [["a"], ["a", "r"]], Budget(), 1)
    for what, budget in (
        ("a loss and a reboot", Budget(1, reboots=1)),
        ("a copy", Budget(0, 1)),
    ):
        yield setting(f"star of 4: {what}", STAR_OF_4, {}, ["r"], budget)
        sums = [["a", "b", "r"]]
        yield setting(f"two pairs: {what}", TWO_PAIRS, {"a": "r", "b": "r"}, sums, budget)
    yield setting("star of 4: a loss, sent again", STAR_OF_4, {}, ["r"], Budget(1, 0, 1), 1)
    for bits in (16, 8):
        for what, budget in (
            ("a loss, a copy and a reboot", Budget(1, 1, 0, reboots=1)),
            ("bypass and a question", Budget(0, 0, 0, 1, 1)),
        ):
            yield setting(f"star of 2, {bits} bits: {what}", STAR, {}, ["r"], budget, bits=bits)
        name = f"star of 2, {bits} bits: a new server"
        yield setting(name, STAR, {}, ["r", "r"], Budget(), 1, 1, [2], bits=bits)
    yield from rooted()
    yield from joining()


def joining() -> Iterator[Setting]:
    """Settings in which a worker joins, and may crash; a tensor of a fragment cannot be torn."""
    for results in Results:
        for what, budget in (
            ("a loss", Budget(1)),
            ("a copy", Budget(0, 1)),
            ("a reboot", Budget(reboots=1)),
        ):
            name = f"1 to 2, {results}: {what}"
            yield growing(name, STAR, {}, ["r"] * 2, budget, results=results)
        yield growing(
            f"1 to 2, {results}: a new server, a loss",
            STAR,
            {},
            ["r"] * 2,
            Budget(1),
            new_servers=[2],
            results=results,
        )
        name = f"1 to 2, {results}: a crash"
        yield growing(name, STAR, {}, ["r"] * 3, Budget(crashes=1), results=results)
    yield growing("2 to 3", STAR_OF_3, {}, ["r"] * 2, Budget())
    yield growing(
        "2 to 3, no sums, unicast", STAR_OF_3, {}, [""] * 2, Budget(), results=Results.UNICAST
    )
    yield growing("2 to 3, two levels", TWO_LEVELS, {"a": "r"}, ["a", ["a", "r"]], Budget())


def rooted() -> Iterator[Setting]:
    """Settings with the server at worker 0, and tensors that have lanes in one direction."""
    for results in Results:
        for what, budget in (
            ("a loss, sent again", Budget(1, 0, 1)),
            ("a loss, a copy and a reboot", Budget(1, 1, 0, reboots=1)),
            ("bypass and a question", Budget(0, 0, 0, 1, 1)),
        ):
            name = f"rooted star, {results}: {what}"
            yield setting(
                name, ROOTED_STAR, {}, ["r"], budget, 1, results=results, reductions=ONE_WAY
            )
    yield setting(
        "rooted star: a plan without sums",
        ROOTED_STAR,
        {},
        ["r", ""],
        Budget(1),
        1,
        reductions=ONE_WAY,
    )
    yield setting(
        "rooted, two levels: two losses",
        ROOTED_LEVELS,
        {"a": "r"},
        [["a", "r"]],
        Budget(2),
        1,
        reductions=ONE_WAY,
    )
    for one in ONE_WAY:
        yield setting(
            f"rooted star: a plan, {one.name}",
            ROOTED_STAR,
            {},
            ["r", "r"],
            Budget(1),
            1,
            reductions=[one],
        )
        # Neighbouring switches ask each other by packets of this kind.
        yield setting(
            f"rooted, window 2: {one.name}",
            ROOTED_PAIR,
            {"a": "r"},
            [["a", "r"]],
            Budget(1),
            2,
            2,
            reductions=[one],
        )


def beyond() -> Iterator[Setting]:
    """Settings of which random walks see a part."""
    up = {"a": "r", "b": "r"}
    much = Budget(4, 3, 4, 2, 2, 2)
    for results in Results:
        yield setting(
            f"4 workers, 3 switches, 3 plans, {results}",
            THREE_LEVELS,
            up,
            [["a", "b", "r"], ["r"], ["a", "r"]],
            much,
            fragments=4,
            window=2,
            new_servers=[3],
            results=results,
        )
        yield setting(
            f"rooted, two levels, 3 plans, {results}",
            ROOTED_LEVELS,
            {"a": "r"},
            [["a", "r"], ["a", "r"], ["a"]],
            much,
            window=2,
            results=results,
            reductions=(*ONE_WAY, Reduction.SUM, *ONE_WAY),
        )
        for what, sums, new_servers in (
            ("", [["a", "b"], ["a", "b", "r"]], [2]),
            (", crashes", [["a", "b", "r"], ["a", "r"], ["r"]], [3]),
        ):
            yield growing(
                f"3 to 4{what}, {results}",
                THREE_LEVELS,
                up,
                sums,
                much._replace(crashes=len(sums) - 2),
                window=2,
                new_servers=new_servers,
                results=results,
                tensors=6,
            )
    yield setting("two levels, 16 bits", TWO_LEVELS, {"a": "r"}, [["a", "r"]], much, bits=16)
    yield setting("two levels, 4 fragments", TWO_LEVELS, {"a": "r"}, [["a", "r"]], much, 4)
