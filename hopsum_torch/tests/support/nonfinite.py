"""Run as a rank: reductions of values that are not all finite; each one's results in a file.

python nonfinite.py gloo|hopsum RESULTS, with the environment that torchrun sets. RESULTS.RANK gets
a dict of what this rank has been given, by name. Where gloo lacks AVG the sum is divided.
"""

from __future__ import annotations

import sys
from itertools import product
from typing import Any

import torch
import torch.distributed as dist

import hopsum_torch

INF, NAN = float("inf"), float("nan")
SPECIAL = torch.tensor([INF, -INF, NAN])
TYPES = ("float32", "float16", "bfloat16", "float64")


def drawn(seed: int, special: float, *shape: int) -> torch.Tensor:
    """Whole numbers, exact in every type and sum, and a share of them not finite."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(-9, 10, shape, generator=generator).float()
    which = torch.randint(len(SPECIAL), shape, generator=generator)
    return torch.where(torch.rand(shape, generator=generator) < special, SPECIAL[which], values)


def reductions(backend: str, results: dict[str, Any], group: Any = None) -> None:
    """Make every reduction, first of finite values; of some ranks only they are not."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    avg = dist.ReduceOp.AVG if backend == "hopsum" else dist.ReduceOp.SUM

    def divided(tensor: torch.Tensor) -> torch.Tensor:
        return tensor if backend == "hopsum" else tensor / size

    for turn, special in enumerate((0.0, 0.02, 0.0, 0.7)):
        for name in TYPES:
            dtype = getattr(torch, name)

            def mine(*shape: int, of: Any = dtype, turn: int = turn, share: float = special) -> Any:
                return drawn(10 * turn + rank, share if rank else 0.0, *shape).to(of)

            key = f"{name}, {special}, turn {turn}"
            summed = [mine(30, 20), mine(9000), mine(1)[0].clone(), mine(8, 6).t(), mine(20)[::2]]
            if backend == "gloo":
                # Of others it sums what lies in between.
                summed = [each.contiguous() for each in summed]
            works = [dist.all_reduce(each, group=group, async_op=True) for each in summed]
            for work in works:
                work.wait()
            assert all(work.is_success() for work in works)
            results[f"sum of {key}"] = summed
            if dtype != torch.float64:
                mean = mine(300)
                dist.all_reduce(mean, avg, group)
                results[f"mean of {key}"] = divided(mean)
            root = dist.get_global_rank(group, size - 1) if group else size - 1
            reduced = mine(400)
            dist.reduce(reduced, root, group=group)
            results[f"reduce of {key}"] = reduced if rank == size - 1 else None
            part, parts = torch.empty(50, dtype=dtype), mine(size * 50)
            dist.reduce_scatter_tensor(part, parts, group=group)
            other = torch.empty(40, dtype=dtype)
            dist.reduce_scatter(other, [mine(40) + each for each in range(size)], group=group)
            results[f"reduce-scatter of {key}"] = [part, other]
            with dist._coalescing_manager(group):
                several = [mine(70), mine(3000)]
                for each in several:
                    dist.all_reduce(each, group=group)
            results[f"coalesced of {key}"] = several
            future = dist.all_reduce(last := mine(60), group=group, async_op=True).get_future()
            [found] = future.wait()
            assert found.data_ptr() == last.data_ptr()
            results[f"future of {key}"] = found


def extremes(results: dict[str, Any]) -> None:
    """Compare MAX and MIN with torch's own functions, in which a NaN is always kept."""
    rank, size = dist.get_rank(), dist.get_world_size()
    ways = ((dist.ReduceOp.MAX, torch.maximum), (dist.ReduceOp.MIN, torch.minimum))
    # The longer ones of types of 16 bits take no more in packets.
    for name, (op, combine), elements in product(TYPES[:3], ways, (500, 9000)):
        # Of either sign, and of any rank.
        dtype = getattr(torch, name)
        mine = [(drawn(each, 0.2, elements) * (-1) ** each).to(dtype) for each in range(size)]
        expected = mine[0]
        for each in mine[1:]:
            expected = combine(expected, each)
        dist.all_reduce(mine[rank], op)
        torch.testing.assert_close(mine[rank], expected, rtol=0, atol=0, equal_nan=True)
        results[f"extremes of {name}"] = int(mine[rank].isnan().sum())


def main() -> None:
    """Make all reductions, also in a sub-group, which has the same options."""
    backend, path = sys.argv[1:]
    options = None if backend == "gloo" else hopsum_torch.Options(nonfinite="pass")
    dist.init_process_group(backend, pg_options=options)
    results: dict[str, Any] = {}
    reductions(backend, results)
    if backend == "hopsum":
        extremes(results)
    pair = dist.new_group([0, dist.get_world_size() - 1])
    if dist.get_rank() in (0, dist.get_world_size() - 1):
        of_pair: dict[str, Any] = {}
        reductions(backend, of_pair, pair)
        results |= {f"{name}, pair": each for name, each in of_pair.items()}
    torch.save(results, f"{path}.{dist.get_rank()}")
    dist.barrier()
    dist.destroy_process_group()


main()
