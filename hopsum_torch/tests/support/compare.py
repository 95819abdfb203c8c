"""Whether operations have given the same values, in two runs of `operations.py`.

python -m tests.support.compare RANKS RESULTS EXPECTED prints a JSON object: by operation whether
all ranks' are equal, and how many of rank 0's calls were made where.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

TOLERANCE = 1e-5
HALF = {torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""gloo rounds to these after every addition, the switches' sums once."""
ROUNDED = {"fp16_hook": 1e-3}
"""Gradients that are rounded to 11 bits on the way."""
ABOUT = ("modules", "made")
"""A value that is the result of no operation."""


def same(operation: str, found: Any, expected: Any) -> None:
    """Compare an operation's results, whichever containers hold the tensors.

    Raises AssertionError where they differ.
    """
    assert type(found) is type(expected), (operation, found)
    if isinstance(expected, torch.Tensor):
        tolerance = HALF.get(expected.dtype, ROUNDED.get(operation, TOLERANCE))
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected), operation
        for one, other in zip(found, expected, strict=True):
            same(operation, one, other)
    else:
        assert found == expected, operation


def main() -> None:
    """Compare the results of all ranks."""
    ranks, found, expected = int(sys.argv[1]), *sys.argv[2:]
    equal: dict[str, bool] = {}
    made: dict[str, dict[str, int]] = {}
    for rank in reversed(range(ranks)):
        mine, other = (
            torch.load(f"{results}.{rank}", weights_only=False) for results in (found, expected)
        )
        made = mine["made"]
        for operation in made:
            try:
                # What failed is a text.
                assert not isinstance(other[operation], str)
                same(operation, mine[operation], other[operation])
            except AssertionError:
                equal[operation] = False
            equal.setdefault(operation, True)
    print(json.dumps({name: {"equal": equal[name], **made[name]} for name in made}))


if __name__ == "__main__":
    main()
