"""One rank of gloo's all-reduce (PyTorch), a process in a host's namespace.

python -m benchmarks.gloo_rank SPEC RANK STORE REPORT: workload as JSON, rank, rendezvous file,
report file. The interface is in GLOO_SOCKET_IFNAME.
"""

from __future__ import annotations

import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
from google.protobuf.json_format import Parse
from torch import distributed

from hopsum.collectives.task_messages import workload_from
from hopsum.host_agent.workload import Verdict, make_workload, verdict_message
from hopsum.protocol import hopsum_pb2 as pb

PATIENCE = timedelta(seconds=180)


def main() -> None:
    """Sum the workload's tensors in place, and write intervals and rank 0's verdict."""
    text, rank, store, report = sys.argv[1:]
    spec = workload_from(Parse(text, pb.Workload()))
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=int(rank),
        world_size=spec.workers,
        timeout=PATIENCE,
    )
    workload = make_workload(spec, int(rank), None)
    intervals = pb.Intervals()
    tensor = workload.next_tensor()
    # The first collective establishes connections.
    distributed.barrier()
    while tensor is not None:
        intervals.starts.append(time.monotonic())
        distributed.all_reduce(torch.from_numpy(tensor))
        intervals.finishes.append(time.monotonic())
        workload.take_result(tensor)
        tensor = workload.next_tensor()
    distributed.barrier()
    # Every rank has the same sums; checking them on all would take most of the time.
    verdict = workload.verdict() if rank == "0" else Verdict()
    partial = Path(f"{report}.partial")
    message = pb.Report(verdict=verdict_message(verdict), intervals=intervals)
    partial.write_bytes(message.SerializeToString())
    partial.rename(report)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
