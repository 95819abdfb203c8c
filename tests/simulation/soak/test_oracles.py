from __future__ import annotations

import pytest

from hopsum.simulation.soak.oracles import longest_silence


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
