"""How often an agent tries to reach a controller that is not there."""

from __future__ import annotations

from itertools import pairwise

from hopsum.host_agent.backoff import Backoff
from hopsum.protocol.liveness import (
    CONNECT_TIMEOUT,
    LAST_PAUSE,
    RECONNECT_PAUSE,
    RECONNECT_SECONDS,
)


def attempts(seconds: float, each: float = 0.0, name: str = "h1") -> list[float]:
    """Return the start times of failing attempts, each of which lasts `each` seconds."""
    backoff, now, starts = Backoff(name, 0.0), 0.0, []
    while now < seconds:
        starts.append(now)
        backoff.attempt(now)
        now += each
        now += backoff.pause(now)
    return starts


def test_a_controller_that_is_away_is_asked_ever_less() -> None:
    starts = attempts(600.0)
    assert len(starts) < 250, "with constant pauses they would be 3,000"
    gaps = [after - before for before, after in pairwise(starts)]
    assert max(gaps) <= LAST_PAUSE
    assert min(gaps[-20:]) > 0.7 * LAST_PAUSE


def test_one_that_returns_soon_is_found_as_soon_as_with_constant_pauses() -> None:
    """Another leader is elected after 3 s; a cut of the network of 20 s must harm no job."""
    gaps = [(before, after - before) for before, after in pairwise(attempts(30.0))]
    assert all(gap <= RECONNECT_PAUSE for before, gap in gaps if before < 4)
    assert all(gap <= 1.0 for before, gap in gaps if before < 20)


def test_after_attempts_that_take_long_there_is_no_longer_pause() -> None:
    """A stopped controller accepts connections, and answers within RECONNECT_SECONDS of its end."""
    starts = attempts(600.0, CONNECT_TIMEOUT)
    assert max(b - a for a, b in pairwise(starts)) < RECONNECT_SECONDS


def test_agents_do_not_come_at_once() -> None:
    last = {attempts(600.0, name=f"h{number}")[-1] for number in range(20)}
    assert len(last) == 20
    assert attempts(600.0) == attempts(600.0), "virtual time is repeatable"


def test_a_controller_that_is_there_again_is_asked_at_once_when_it_goes() -> None:
    backoff = Backoff("h1", 0.0)
    backoff.attempt(600.0)
    assert backoff.pause(600.0) > RECONNECT_PAUSE
    backoff.heard(700.0)
    backoff.attempt(700.0)
    assert backoff.pause(700.0) <= RECONNECT_PAUSE
