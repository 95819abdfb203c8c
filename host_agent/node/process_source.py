"""The calls of the processes on this host: agreed on with those on other hosts, and summed.

The processes are the ranks of the job, one or several a host. What one host submits to the switches
and another does not would shift all that follows. So calls begin with a *check*: an int32 tensor of
one fragment in which each rank has WORDS words for each of the next calls, a host's own filled in
and all others zero, so that every host learns from the sum what all ranks call. All reach the same
conclusion about the calls that all have made; the rest is for the next check. Only if they call for
the same, and nothing is wrong with any rank's values, do these follow, those of a host's ranks
added up (`hopsum.host_agent.node.local_sums`); then the next check.

*Packs.* The check also holds the magnitudes. Small tensors of a check, those whose common scale is
known from it, are summed as the integers of one tensor: they share fragments, no exponents travel
ahead of float32, and it makes no difference which ranks share a host.

*Guesses.* A training makes the same calls in the same order again and again. So the hosts guess
that what followed the last calls before follows them again. If that is a tensor of moderate length,
its values are submitted right behind the check, without waiting for it. A host where a rank wants
something else submits zeros of the length guessed. If the guess was wrong, the sum is not used, and
the values follow as above. Whether there is a guess, and which, follows from calls that all agreed
on, so all hosts have the same. Small sums of float32 are not guessed: they would wait for their
exponents as long as for the check.

*Sure guesses.* Once a guess was right SURE times in a row, no check is sent: the values alone are,
of small float32 as integers by the scale of the last time, of a barrier a zero. A byte goes with
them of which all get the ranks' maximum (`hopsum.host_agent.segment.Remark`): OTHER of a host that
wants something else or must not send its values, which sends zeros, then all begin a check; for
float32 the exponent byte of the host's magnitude. Where the maximum is another than that of the
last time, the sum is not used, and the integers are submitted again by the scale that it gives.
The exponent byte of values from 2^127 on is OTHER, too: no guess of them is sure.

While a host has nothing else to do its flows take sure calls by themselves
(`hopsum.host_agent.node.expected_calls`).

*Values that are not finite* are an error at all ranks, unless every rank that has some lets them
into the sum. Then all hosts know from the check that they are to be counted, in a tensor of as many
integers (`hopsum.host_agent.node.nonfinite`).

*Halves.* Where the magnitudes of int32 tensors could add up to more than 31 bits, their upper and
lower 16 bits are summed apart, in as many tensors: then it is known which sums overflow.

*Other reductions* than sums are integers that the switches combine
(`hopsum.host_agent.node.reductions`); each packet says how.

*Targets.* A sum may be for all ranks, for one, or for each a part of it; what is copied to all may
be one rank's, or of each a part. Where trees are rooted at the ranks' hosts these calls take no
more than they need (`hopsum.host_agent.node.roots`). Elsewhere all hosts get all sums, and a copy
is the XOR of what its ranks have and the others' zeros, or an error in jobs with check lanes, which
protect sums only. Halves are for all, so that all know where they overflow.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopsum.collectives.plan import WINDOW_BMV2
from hopsum.host_agent.io.attendance import ProcessGone
from hopsum.host_agent.io.process_connection import Request
from hopsum.host_agent.node.calls import (
    BARRIER,
    LEAVE,
    SUM_FLOAT,
    SUM_INT,
    CallSpec,
    wanted,
)
from hopsum.host_agent.node.environment import NamedTensor, RankCalls
from hopsum.host_agent.node.expected_calls import ExpectedCalls
from hopsum.host_agent.node.guesses import OTHER, Guesses, Prediction
from hopsum.host_agent.node.nonfinite import put_back, take_out
from hopsum.host_agent.node.rank_values import HALF, MOST, RankCall, RankValues
from hopsum.host_agent.node.roots import Roots
from hopsum.host_agent.process_calls import FAULTS, PASSED
from hopsum.host_agent.segment import CallOptions, Remark, Tensor
from hopsum.host_agent.sure_calls import InFlightCall, SureCalls
from hopsum.host_agent.workload import UncheckedWorkload
from hopsum.protocol.wire import LANES_DEFAULT, Reduction

WORDS = 4
"""Words per rank and call in a check: `CallSpec.word`, elements, index of a fault, magnitude."""
PACKED_ELEMENTS = 1 << 13
"""Maximum elements of a tensor that shares fragments with others, with one scale."""
_LEFT = Request("leave")
_CHECK, _GUESS, _SURE, _VALUES, _PACK = "check", "guess", "sure", "values", "pack"
_UPPER, _LOWER, _COUNTS = "upper", "lower", "counts"


@dataclass(frozen=True, slots=True)
class _Pack:
    """Calls whose tensors are summed as one. `codes`: exponents of the scales of float32."""

    calls: Sequence[RankCall]
    codes: Sequence[int]


class ProcessSource:
    """The source of tensors of the processes on host `host`, until all processes of the job have
    left.

    `ranks`: the host of each. All hosts' sources give `next` tensors of the same types and lengths
    in the same order, even if their processes call for others. Raises ProcessGone for one that ends
    unannounced, or does not attend within `attend_seconds` of the start. `lanes`: values of a
    fragment. `window`: fragments whose values have one scale, at least. `sums_only`: other
    reductions are refused. `roots`: of the job's trees, if they are the ranks' hosts.
    """

    in_place = True

    def __init__(
        self,
        attendance: RankCalls,
        host: str,
        ranks: Sequence[str],
        *,
        lanes: int = LANES_DEFAULT,
        window: int = WINDOW_BMV2,
        sums_only: bool = False,
        roots: Roots | None = None,
        attend_seconds: float = inf,
    ) -> None:
        self.workload = UncheckedWorkload()
        self.prepared = False
        self.over = False
        self.deadline: float | None = None
        self._host = host
        self._attend_seconds = attend_seconds
        self._attendance = attendance
        self._ranks = tuple(ranks)
        self._sums_only = sums_only
        self._roots = roots
        self._here = [rank for rank, each in enumerate(ranks) if each == host]
        self._most_calls = max(1, lanes // (WORDS * len(self._ranks)))
        """Most calls of a check: as many as fit into one fragment, or one."""
        packed = min(PACKED_ELEMENTS, lanes * window)
        self._values = RankValues(ranks, self._here, packed, rooted=roots is not None)
        self._asked: dict[int, deque[Request]] = {rank: deque() for rank in self._here}
        """Calls by rank that are not known to be made by all ranks."""
        self._left: set[int] = set()
        """Ranks of this host that have left."""
        self._checked: list[RankCall] | None = None
        """The calls whose check is in progress."""
        self._ready: deque[tuple[str, RankCall | _Pack, Tensor]] = deque()
        self._submitted: dict[str, tuple[str, RankCall | _Pack]] = {}
        self._numbers = 0
        self._guesses = Guesses()
        self._sure: tuple[RankCall, Prediction] | None = None
        """The call that is submitted without a check, and what it is expected to be."""
        self._expected = ExpectedCalls(self._guesses, len(ranks), packed)
        self._guessed: dict[RankCall, Tensor | None] = {}
        """Sums of guesses that precede their check, or None for checks that precede their sum."""

    def prepare(self) -> None:
        """Do nothing: no preparation is needed."""
        self.prepared = True

    def start(self, now: float) -> None:
        """Notify the processes, when they are connected."""
        self._attendance.start(self._ranks, rooted=self._roots is not None)
        if self._attend_seconds < inf:
            self.deadline = now + self._attend_seconds

    def next(self, now: float) -> NamedTensor | None:
        """Return the next tensor, the same at all workers. Raises ProcessGone."""
        if len(self._left) < len(self._here):
            for rank, request in self._attendance.take():
                if request.kind == "leave":
                    self._left.add(rank)
                else:
                    self._asked[rank].append(request)
        if not self._ready and self._checked is None and self._sure is None:
            self._begin()
        if not self._ready:
            return None
        kind, what, tensor = self._ready.popleft()
        return NamedTensor(self._name(kind, what), tensor, self._options(kind, what, len(tensor)))

    def _name(self, kind: str, what: RankCall | _Pack) -> str:
        """Return the name of a tensor that is submitted now."""
        self._numbers += 1
        name = f"{kind} {self._numbers}"
        self._submitted[name] = kind, what
        return name

    # -- calls that flows take

    def expect(
        self, reduction: Reduction, only_tree: Callable[[int], int | None]
    ) -> SureCalls | None:
        """Return the calls that flows may take while this waits, all on one tree; None: none.

        `reduction`: of sums in the switches; `only_tree`: as of the job's worker. What flows have
        done with them comes to `took`.
        """
        quiet = not (self._ready or self._submitted or self._checked or self._sure or self._left)
        if not quiet or self.over or any(self._asked.values()):
            return None
        if len(self._here) > 1 or self._roots is not None or self._sums_only:
            return None
        mailbox = self._attendance.mailbox(self._here[0])
        if mailbox is None:
            return None
        return self._expected.offer(mailbox, reduction, only_tree)

    def took(self, done: int, begun: InFlightCall | None) -> NamedTensor | None:
        """Count the calls that flows have taken, `done` of them, and go on with one that they have
        `begun`: return its name and values."""
        for _ in range(done):
            following = self._expected.next()
            self._guesses.remember(following.wanted, following.remark)
            self._numbers += 1
        if begun is None:
            return None
        following = self._expected.next()
        [rank] = self._here
        self._asked[rank].append(self._attendance.request(rank, begun.packet))
        call = RankCall(self._next_of(rank, 1))
        call.remark = begun.remark
        self._sure = call, following
        return NamedTensor(self._name(_SURE, call), begun.values)

    def _options(self, kind: str, what: RankCall | _Pack, elements: int) -> CallOptions:
        """Return how a tensor is submitted for calls."""
        agreed = self._wanted_by(kind, what)
        if self._roots is None:
            options = CallOptions(None if agreed is None else agreed.reduction)
        elif agreed is None:
            options = self._roots.for_all(None, elements)
        else:
            options = self._roots.options(agreed, elements)
        if isinstance(what, RankCall) and kind == _SURE:
            options = options._replace(remark=what.remark)
        if agreed is not None and kind in (_VALUES, _GUESS):
            options = options._replace(width=agreed.width)
        return options

    def _wanted_by(self, kind: str, what: RankCall | _Pack) -> CallSpec | None:
        """Return the call that a tensor is for; None: a check, or several calls."""
        if isinstance(what, _Pack):
            return what.calls[0].wanted if len(what.calls) == 1 else None
        if kind == _SURE:
            assert self._sure is not None
            expected = self._sure[1].wanted
            return expected if expected.values else None
        if kind == _GUESS:
            return what.guess
        return what.wanted if kind in (_VALUES, _COUNTS) else None

    def _begin(self) -> None:
        """Prepare the next calls; processes that left take part until all have."""
        if self.over or not all(self._asked[rank] or rank in self._left for rank in self._here):
            return
        following = self._guesses.next()
        if following is None:
            self._check(None)
        elif following.sure(self._values.packed_elements) and not self._sums_only:
            self._begin_sure(following)
        else:
            self._check(following.guessed(self._values.packed_elements))

    def _check(self, guess: CallSpec | None) -> None:
        """Prepare the check of the next calls, and what is guessed of the first."""
        self._expected.clear()
        count = self._most_calls
        if not self._left:
            count = min(count, max(map(len, self._asked.values())))
        asked = [self._next_of(rank, count) for rank in self._here]
        self._checked = calls = [RankCall(each) for each in zip(*asked, strict=True)]
        self._ready.append((_CHECK, calls[0], self._words(calls)))
        calls[0].guess = guess
        if guess is not None:
            values = self._values.guessed(calls[0], guess)
            if values is None:
                values = np.zeros(guess.elements, guess.type)
            self._ready.append((_GUESS, calls[0], values))

    def _begin_sure(self, following: Prediction) -> None:
        """Submit the next call as it is expected to be, without a check."""
        guess = following.wanted
        call = RankCall([self._next_of(rank, 1)[0] for rank in self._here])
        self._expected.skip()
        values, remark = None, OTHER
        # Calls that have come in the meantime share a check, and fragments.
        if all(len(asked) <= 1 for asked in self._asked.values()):
            if guess.code != SUM_FLOAT:
                values = self._values.guessed(call, guess)
                remark = OTHER if values is None else 0
            elif call.is_as(guess):
                remark = max(self._values.magnitude(each, guess) for each in call.made)
                if remark <= following.magnitude:
                    values = self._values.integers(call, following.magnitude)
        if values is None:
            values = np.zeros(max(1, guess.elements), np.int32)
        call.remark = Remark(remark)
        self._sure = call, following
        self._ready.append((_SURE, call, values))

    def _next_of(self, rank: int, count: int) -> list[Request | None]:
        """Return the next `count` calls of a rank; _LEFT or None for each that it has not made."""
        asked: list[Request | None] = [*islice(self._asked[rank], count)]
        then = _LEFT if rank in self._left else None
        return asked + [then] * (count - len(asked))

    def _words(self, calls: Sequence[RankCall]) -> Tensor:
        words = np.zeros((self._most_calls, len(self._ranks), WORDS), np.uint32)
        for place, call in enumerate(calls):
            for rank, request in zip(self._here, call.requests, strict=True):
                if request is None:
                    continue
                fault, index = (0, 0)
                if request.fault is not None:
                    fault, index = FAULTS.index(request.fault[0]) + 1, request.fault[1]
                asked = wanted(request)
                words[place, rank] = (
                    asked.word(fault),
                    asked.elements,
                    index,
                    self._values.magnitude(request, asked),
                )
        return words.reshape(-1).view(np.int32)

    # -- results

    def finish(self, name: str, result: Tensor, now: float) -> None:
        """Process the sum of a tensor."""
        kind, call = self._submitted.pop(name)
        if isinstance(call, _Pack):
            self._unpack(call, result)
            return
        match kind:
            case "check":
                assert self._checked is not None
                calls, self._checked = self._checked, None
                self._agree(calls, result.reshape(-1, len(self._ranks), WORDS))
            case "guess":
                if call in self._guessed:
                    del self._guessed[call]
                    self._take(call, result)
                elif self._checked is not None and call is self._checked[0]:
                    self._guessed[call] = result
            case "sure":
                assert self._sure is not None
                (_, following), self._sure = self._sure, None
                self._settle(call, following, result)
            case "upper" | "lower":
                call.halves[kind] = result
                if len(call.halves) == 2:
                    self._join(call)
            case "counts":
                call.counts = result
                if call.total is not None:
                    self._copy(call, call.total)
            case _:
                self._take(call, result)

    def _agree(self, calls: Sequence[RankCall], words: NDArray[Any]) -> None:
        """Conclude, in order, the calls that all workers have made."""
        packed: list[tuple[RankCall, int]] = []
        for call, of_call in zip(calls, words, strict=False):
            if not of_call[:, 0].all():
                break
            self._pass()
            if self._conclude(call, of_call):
                packed.append((call, int(of_call[:, 3].max())))
            if self.over:
                break
        if packed:
            self._pack(packed)

    def _pass(self) -> None:
        """Leave behind a call that all ranks are known to make."""
        for asked in self._asked.values():
            if asked:
                asked.popleft()

    def _settle(self, call: RankCall, following: Prediction, result: Tensor) -> None:
        """Take the sum of a call without a check, unless the remarks are against it."""
        assert call.remark is not None
        remark, expected = call.remark.maximum, following.magnitude
        if remark == OTHER:
            self._guesses.doubt()
            self._expected.clear()
            self._check(None)
            return
        self._pass()
        if following.wanted.code == BARRIER:
            self._done(call)
        elif following.wanted.code != SUM_FLOAT:
            self._take(call, result)
        elif remark == expected:
            self._unpack(_Pack([call], [remark]), result)
        else:
            self._expected.clear()
            self._pack([(call, remark)])
        self._guesses.remember(following.wanted, remark)

    def _pack(self, packed: Sequence[tuple[RankCall, int]]) -> None:
        """Prepare the integers of calls, those for all as one tensor.

        `packed`: calls with their magnitudes.
        """
        together = []
        for each in packed:
            if self._roots is not None and self._roots.splits(each[0].wanted):
                self._pack_together([each])
            else:
                together.append(each)
        if together:
            self._pack_together(together)

    def _pack_together(self, packed: Sequence[tuple[RankCall, int]]) -> None:
        first = packed[0][0]
        if len(packed) == 1 and first.wanted.code == SUM_INT:
            self._ready.append((_VALUES, first, self._values.combined(first, first.tensors)))
            return
        parts = [self._values.integers(call, code) for call, code in packed]
        pack = _Pack(*zip(*packed, strict=True))
        self._ready.append((_PACK, pack, parts[0] if len(parts) == 1 else np.concatenate(parts)))

    def _unpack(self, pack: _Pack, result: Tensor) -> None:
        start = 0
        for call, code in zip(pack.calls, pack.codes, strict=True):
            total = result[start : start + call.wanted.elements]
            start += call.wanted.elements
            self._copy(call, self._values.of_integers(call, total, code))

    def _conclude(self, call: RankCall, words: NDArray[Any]) -> bool:
        """Process the calls of all ranks; return whether the call belongs to the check's pack.

        All have the same words, and come to the same conclusion.
        """
        calls = [CallSpec.from_word(int(word), int(elements)) for word, elements, _, _ in words]
        agreed = calls[0]
        if any(other != agreed for other in calls):
            self._void(call)
            self._disagree(call, calls)
            return False
        if self._sums_only and agreed.reduction is not None:
            self._void(call)
            why = (
                f"{agreed}: the job has check lanes, which protect sums only; call a sum, or "
                "submit the job without --integrity"
            )
            self._failed(call, why, {})
            return False
        self._guesses.remember(agreed, int(words[:, 3].max()))
        wrong = {
            rank: (FAULTS[code - 1], int(index))
            for rank, (word, _, index, _) in enumerate(words)
            if (code := int(word) >> 8 & 0xFF)
        }
        faults = {
            rank: f"element {index} is {fault}"
            for rank, (fault, index) in wrong.items()
            if fault != PASSED
        }
        if faults:
            self._void(call)
            self._failed(
                call,
                "only finite values can be summed (look for a diverged gradient, or clip it)"
                if agreed.reduction is None
                else "a NaN cannot be compared (look for a diverged gradient)",
                faults,
            )
        elif agreed.code == LEAVE:
            self.over = True
        elif not agreed.values:
            self._done(call)
        else:
            call.counted = bool(wrong)
            return self._sum(call, agreed, [int(each) for each in words[:, 3]])
        return False

    def _sum(self, call: RankCall, agreed: CallSpec, magnitudes: list[int]) -> bool:
        """Prepare a call's tensor; return whether it belongs to the check's pack instead."""
        narrow = self._values.are_narrow(agreed, magnitudes)
        if call.guess == agreed and narrow and not call.counted:
            if call in self._guessed:
                total = self._guessed.pop(call)
                assert total is not None
                self._take(call, total)
            else:
                self._guessed[call] = None
            return False
        self._void(call)
        if call.counted:
            self._ready.append((_COUNTS, call, take_out(call.tensors)))
        if agreed.code == SUM_INT and sum(magnitudes) > MOST:
            upper, lower = self._values.halves(call)
            self._ready += [(_UPPER, call, upper), (_LOWER, call, lower)]
        elif agreed.reduction is None and self._values.are_few(agreed):
            return True
        else:
            if agreed.sums_floats:
                call.excess = self._values.excess(magnitudes)
            self._ready.append((_VALUES, call, self._values.combined(call, call.tensors)))
        return False

    def _void(self, call: RankCall) -> None:
        """Discard the sum of a guess, whether it has arrived or not."""
        self._guessed.pop(call, None)

    def _take(self, call: RankCall, total: Tensor) -> None:
        """Decode a total of `_combined` tensors, and deliver each rank's share."""
        self._copy(call, self._values.of_combined(call, total))

    def _copy(self, call: RankCall, total: Tensor) -> None:
        """Give every rank here its share of a result, and let it know."""
        if call.counted:
            if call.counts is None:
                call.total = total
                return
            put_back(total, call.counts)
        self._values.hand_out(call, total)
        self._done(call)

    def _join(self, call: RankCall) -> None:
        """Combine the halves, or report where they overflow."""
        total = (call.halves[_UPPER].astype(np.int64) << HALF) + call.halves[_LOWER]
        wrong = np.flatnonzero((total > MOST) | (total < -MOST - 1))
        if len(wrong):
            index = int(wrong[0])
            self._failed(
                call,
                f"element {index}: the sum is {total[index]}, beyond int32 (sum int64 instead)",
                {},
            )
            return
        self._copy(call, total.astype(np.int32))

    def _done(self, call: RankCall) -> None:
        for rank, request in zip(self._here, call.requests, strict=True):
            assert request is not None
            self._attendance.done(rank, request.call)

    def _failed(self, call: RankCall, why: str, whose: dict[int, str]) -> None:
        for rank, request in zip(self._here, call.requests, strict=True):
            if request is not None and request.kind != "leave":
                self._attendance.failed(rank, request.call, why, whose)

    def _disagree(self, call: RankCall, calls: list[CallSpec]) -> None:
        """Name the ranks whose calls differ from the majority (ties: the first)."""
        remaining = [each for each in calls if each.code != LEAVE]
        most = Counter(remaining).most_common(1)[0][0]
        whose = {rank: str(each) for rank, each in enumerate(calls) if each != most}
        self._failed(call, f"the ranks make different calls; most call: {most}", whose)

    def tick(self, now: float) -> None:
        """End a job that processes do not attend: it holds slots. Raises ProcessGone."""
        if self.deadline is None or now < self.deadline:
            return
        self.deadline = None
        absent = ", ".join(map(str, self._attendance.absent()))
        if absent:
            raise ProcessGone(
                f"no process on {self._host} attended the job as rank {absent} within "
                f"{self._attend_seconds:g} s of its start; start all ranks, then submit it again, "
                "or give the controller a longer --attend-limit"
            )

    def close(self, why: str = "") -> None:
        """Notify the processes, if they are still connected."""
        self._attendance.close(why)
