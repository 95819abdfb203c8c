"""`make model-check`: all settings of the model, and what was seen of each."""

from __future__ import annotations

import argparse
import sys
import time

from tests.model.explore import Explored, breadth_first, random_walks
from tests.model.p4_traces import follow
from tests.model.settings import beyond, exhaustive


def main() -> int:
    """Explore; the exit code is 1 when something breaks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--states", type=int, default=400_000, help="most of a setting")
    parser.add_argument("--walks", type=int, default=200, help="random walks of each large setting")
    parser.add_argument("--seed", type=int, default=1, help="of the walks")
    options = parser.parse_args()
    works = [
        *((setting, lambda s: breadth_first(s, options.states)) for setting in exhaustive()),
        *(
            (setting, lambda s: random_walks(s, options.walks, options.seed))
            for setting in beyond()
        ),
    ]
    heads = f"{'setting':<50} {'states':>9} {'steps':>9} {'all':>4} {'s':>6} {'in P4':>7}"
    print(f"{heads}  of components")
    broken = 0
    for setting, explore in works:
        began = time.monotonic()
        try:
            seen = explore(setting)
            followed = follow(seen.model)
        except AssertionError as error:
            broken += 1
            print(f"{setting.name:<50} breaks:\n{error}\n")
            continue
        print(_row(seen, followed, time.monotonic() - began), flush=True)
    return int(broken > 0)


def _row(seen: Explored, followed: int, seconds: float) -> str:
    whole = "yes" if seen.complete else "-"
    return (
        f"{seen.model.setting.name:<50} {seen.states:>9,} {seen.transitions:>9,} {whole:>4} "
        f"{seconds:>6.0f} {followed:>7,}  {seen.model.sizes}"
    )


if __name__ == "__main__":
    sys.exit(main())
