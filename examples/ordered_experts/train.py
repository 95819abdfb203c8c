"""Train a mixture of experts whose gradients become ready in other orders at every rank.

    hopsum torchrun --topology star:4 --workers 3 examples/ordered_experts/train.py --epochs 4

or, without a cluster, `torchrun --nproc-per-node 2 train.py --backend gloo`.
"""

from __future__ import annotations

import argparse
import time

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn

from hopsum_torch.ordered import OrderedGradients

EXPERTS, CHOSEN, WIDTH = 8, 2, 64
"""Experts, how many of them take each image, and numbers of an image."""


class Mixture(nn.Module):
    """A mixture of experts for images of 8 by 8, of 70,000 parameters.

    A router chooses experts for each image. Experts without images are not called, so they have no
    gradients; those with the most are called first.
    """

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
            for _ in range(EXPERTS)
        )
        self.out = nn.Linear(WIDTH, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits of the ten digits."""
        weights, chosen = self.router(images).softmax(1).topk(CHOSEN)
        counts = torch.bincount(chosen.flatten(), minlength=EXPERTS)
        total = images
        for number in counts.argsort(descending=True, stable=True)[: int((counts > 0).sum())]:
            image, place = (chosen == number).nonzero(as_tuple=True)
            values = weights[image, place, None] * self.experts[number](images[image])
            total = total.index_add(0, image, values)
        return self.out(total)


def main() -> None:
    """Train, and print the loss after every epoch and the accuracy in the end, on rank 0."""
    parser = argparse.ArgumentParser(description="Train a mixture of experts on digits.")
    parser.add_argument("--backend", default="hopsum")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch", type=int, default=96, help="images a step, of all ranks")
    options = parser.parse_args()

    dist.init_process_group(options.backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    torch.set_num_threads(1)
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    targets = torch.tensor(digits.target)
    # Each rank has other digits, as ranks with data of different places have, so other experts.
    model = Mixture()
    ordered = OrderedGradients(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    for epoch in range(options.epochs):
        began, total, steps = time.monotonic(), torch.zeros(()), 0
        order = torch.randperm(1440, generator=torch.Generator().manual_seed(epoch))
        for batch in order.split(options.batch):
            mine = batch[targets[batch].argsort(stable=True)].chunk(size)[rank]
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images[mine]), targets[mine])
            loss.backward()
            ordered.synchronize()
            optimizer.step()
            total, steps = total + loss.detach(), steps + 1
        dist.all_reduce(total.div_(size))
        if rank == 0:
            seconds = (time.monotonic() - began) / steps
            print(
                f"epoch {epoch + 1}: loss {total / steps:.6f}, {1000 * seconds:.1f} ms a step",
                flush=True,
            )
    with torch.no_grad():
        right = (model(images[1440:]).argmax(1) == targets[1440:]).float().mean()
    if rank == 0:
        print(f"accuracy {right:.3f}", flush=True)
    ordered.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
