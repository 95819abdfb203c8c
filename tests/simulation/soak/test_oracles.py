from __future__ import annotations

import pytest

from hopsum.simulation.soak.oracles import flood_seconds, longest_silence
from hopsum.simulation.soak.schedule import Attack, Forgery


@pytest.mark.parametrize(
    ("outages", "seconds"),
    [
        ([], 0),
        ([(1, 13)], 24),
        ([(3, 5), (1, 4), (2, 3)], 8),
        # The connection that the first one silenced may try again at 3 only.
        ([(1, 2), (2.5, 14)], 26),
        ([(1, 2), (3.5, 14)], 21),
        ([(1, 2), (2.5, 4), (6.5, 7)], 12),
        ([(20, 32), (1, 2)], 24),
    ],
)
def test_outages_that_follow_each_other_silence_a_connection_longer(
    outages: list[tuple[float, float]], seconds: float
) -> None:
    assert longest_silence(outages) == seconds


def test_forged_frames_fill_a_slow_link_for_long() -> None:
    """400 of 1,514 bytes."""
    attack = Attack(Forgery.REPLAY, "h1", 1.0, 5.0, every=0.01, seed=1)
    assert flood_seconds([attack, attack], 25_000) == pytest.approx(2 * 400 * 1514 * 8 / 25_000)
    assert flood_seconds([attack], 1e6) < 5
    assert flood_seconds([], 1e6) == 0
