"""Train a small CNN on scikit-learn's handwritten digits with DistributedDataParallel.

    hopsum torchrun --topology star:4 --workers 3 examples/ddp_cnn/train.py --epochs 4

or, without a cluster, `torchrun --nproc-per-node 2 train.py --backend gloo`.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel


def model() -> nn.Module:
    """Return a CNN for images of 8 by 8, of 85,000 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.GroupNorm(4, 16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.GroupNorm(4, 32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 150),
        nn.ReLU(),
        nn.Linear(150, 10),
    )


def main() -> None:
    """Train, and print the loss after every epoch and the accuracy in the end, on rank 0."""
    parser = argparse.ArgumentParser(description="Train on digits with DDP.")
    parser.add_argument("--backend", default="hopsum")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch", type=int, default=96, help="images a step, of all ranks")
    parser.add_argument("--bfloat16", action="store_true", help="compute, and sum, in bfloat16")
    parser.add_argument(
        "--checkpoint", type=Path, help="file, for all ranks the same: written after each epoch"
    )
    options = parser.parse_args()

    dist.init_process_group(options.backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    torch.set_num_threads(1)
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    targets = torch.tensor(digits.target)
    test_images, test_targets = images[1440:], targets[1440:]
    net = DistributedDataParallel(model())
    if options.bfloat16:
        # Under its own name DDP takes it for NCCL alone.
        net.register_comm_hook(None, lambda group, bucket: bf16_compress_hook(group, bucket))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    first = 0
    if options.checkpoint and options.checkpoint.exists():
        saved = torch.load(options.checkpoint)
        net.module.load_state_dict(saved["net"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["epochs"]
        print(f"rank {rank} of {size} goes on after epoch {first}", flush=True)

    for epoch in range(first, options.epochs):
        began, total, steps = time.monotonic(), torch.zeros(()), 0
        order = torch.randperm(1440, generator=torch.Generator().manual_seed(epoch))
        for batch in order.split(options.batch):
            mine = batch[rank::size]
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, options.bfloat16):
                loss = nn.functional.cross_entropy(net(images[mine]), targets[mine])
            loss.backward()
            optimizer.step()
            total, steps = total + loss.detach(), steps + 1
        dist.all_reduce(total, dist.ReduceOp.AVG)
        if rank == 0:
            seconds = (time.monotonic() - began) / steps
            print(
                f"epoch {epoch + 1}: loss {total / steps:.6f}, {1000 * seconds:.1f} ms a step",
                flush=True,
            )
            if options.checkpoint:
                states = {"net": net.module.state_dict(), "optimizer": optimizer.state_dict()}
                # A rank that is killed while it writes leaves the file before it whole.
                unfinished = options.checkpoint.with_suffix(".new")
                torch.save({**states, "epochs": epoch + 1}, unfinished)
                unfinished.replace(options.checkpoint)
    with torch.no_grad():
        right = (net(test_images).argmax(1) == test_targets).float().mean()
    if rank == 0:
        print(f"accuracy {right:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
