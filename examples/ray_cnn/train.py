"""Train a small CNN with Ray Train: the backend is an option of its TorchConfig.

    hopsum exec h1 env RAY_ADDRESS=10.0.0.1:6379 python train.py

where README.md has started Ray, or, on this machine alone, `python train.py --gloo`.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from ray import train
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, prepare_data_loader, prepare_model
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TRAINED = 1440
"""Images to train on, of 1,797."""


def network() -> nn.Module:
    """Return a CNN for images of 8 by 8, of 85,000 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 150),
        nn.ReLU(),
        nn.Linear(150, 10),
    )


def train_worker(options: dict[str, Any]) -> list[dict[str, float]]:
    """Train on a worker; report each epoch's loss, accuracy and step time, and return them all."""
    torch.manual_seed(1)
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    targets = torch.tensor(digits.target)
    loader = DataLoader(
        TensorDataset(images[:TRAINED], targets[:TRAINED]),
        96 // train.get_context().get_world_size(),
        shuffle=True,
    )
    loader = prepare_data_loader(loader)
    net = prepare_model(network())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

    epochs: list[dict[str, float]] = []
    for epoch in range(options["epochs"]):
        began, total = time.monotonic(), torch.zeros(())
        loader.sampler.set_epoch(epoch)
        for values, expected in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(values), expected)
            loss.backward()
            optimizer.step()
            total += loss.detach()
        dist.all_reduce(total, dist.ReduceOp.AVG)
        milliseconds = 1000 * (time.monotonic() - began) / len(loader)
        with torch.no_grad():
            right = (net(images[TRAINED:]).argmax(1) == targets[TRAINED:]).float().mean()
        epochs.append(
            {
                "loss": float(total / len(loader)),
                "accuracy": float(right),
                "milliseconds": milliseconds,
            }
        )
        train.report(epochs[-1])
    return epochs


def main() -> None:
    """Train on a Ray cluster, and print the loss of every epoch and the accuracy in the end."""
    parser = argparse.ArgumentParser(description="Train on digits with Ray Train.")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--gloo", action="store_true", help="use no switches, to compare")
    options = parser.parse_args()

    trainer = TorchTrainer(
        train_worker,
        train_loop_config={"epochs": options.epochs},
        torch_config=TorchConfig(backend="hopsum"),
        scaling_config=ScalingConfig(num_workers=options.workers),
        run_config=RunConfig(
            # Of a folder that all machines share.
            storage_path=str(Path("results").resolve()),
            # Without agents everything goes over gloo.
            worker_runtime_env={"env_vars": {"HOPSUM_AGENT": "none"}} if options.gloo else None,
        ),
    )
    epochs = trainer.fit().return_value
    for number, each in enumerate(epochs, 1):
        print(f"epoch {number}: loss {each['loss']:.6f}, {each['milliseconds']:.1f} ms a step")
    print(f"accuracy {epochs[-1]['accuracy']:.3f}")


if __name__ == "__main__":
    main()
