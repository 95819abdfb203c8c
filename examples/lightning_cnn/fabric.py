"""Train a small CNN with Lightning Fabric: the backend is an option of its strategy.

    hopsum torchrun --topology star:4 --workers 3 examples/lightning_cnn/fabric.py

or, without a cluster, `torchrun --nproc-per-node 3 fabric.py --backend gloo`.
"""

from __future__ import annotations

import argparse
import os
import time

import torch
import torch.distributed as dist
from lightning.fabric import Fabric
from lightning.fabric.strategies import DDPStrategy
from model import images, network
from torch import nn
from torch.utils.data import DataLoader


def main() -> None:
    """Train, and print the loss of every epoch and the accuracy in the end, on rank 0."""
    parser = argparse.ArgumentParser(description="Train on digits with Lightning Fabric.")
    parser.add_argument("--backend", default="hopsum")
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args()

    ranks, here = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
    fabric = Fabric(
        accelerator="cpu",
        num_nodes=ranks // here,
        devices=here,
        strategy=DDPStrategy(process_group_backend=options.backend),
    )
    fabric.launch()
    fabric.seed_everything(1, verbose=False)
    train, test = images()
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    net, optimizer = fabric.setup(net, optimizer)
    loader = fabric.setup_dataloaders(DataLoader(train, 96 // ranks, shuffle=True))

    for epoch in range(options.epochs):
        began, total = time.monotonic(), torch.zeros(())
        loader.sampler.set_epoch(epoch)
        for values, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(values), targets)
            fabric.backward(loss)
            optimizer.step()
            total += loss.detach()
        mean = fabric.all_reduce(total, reduce_op="mean") / len(loader)
        took = 1000 * (time.monotonic() - began) / len(loader)
        fabric.print(f"epoch {epoch + 1}: loss {mean:.6f}, {took:.1f} ms a step", flush=True)
    with torch.no_grad():
        values, targets = test.tensors
        right = (net(values).argmax(1) == targets).float().mean()
    fabric.print(f"accuracy {right:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
