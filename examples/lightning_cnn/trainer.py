"""Train a small CNN with Lightning's Trainer: the backend is an option of its strategy.

    hopsum torchrun --topology star:4 --workers 3 examples/lightning_cnn/trainer.py

or, without a cluster, `torchrun --nproc-per-node 3 trainer.py --backend gloo`.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

import lightning
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy
from model import images, network
from torch import nn
from torch.utils.data import DataLoader


class Digits(lightning.LightningModule):
    """Trains the CNN, and prints the loss of every epoch on rank 0."""

    def __init__(self) -> None:
        super().__init__()
        self.network = network()
        self._began = 0.0

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        """Return the loss of a batch."""
        values, targets = batch
        loss = nn.functional.cross_entropy(self.network(values), targets)
        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def on_train_epoch_start(self) -> None:
        """Take the time."""
        self._began = time.monotonic()

    def on_train_epoch_end(self) -> None:
        """Print the epoch's loss."""
        seconds = (time.monotonic() - self._began) / self.trainer.num_training_batches
        loss = self.trainer.callback_metrics["loss"]
        self.print(
            f"epoch {self.current_epoch + 1}: loss {loss:.6f}, {1000 * seconds:.1f} ms a step",
            flush=True,
        )

    def validation_step(self, batch: Any, number: int) -> None:
        """Log the accuracy of a batch."""
        values, targets = batch
        right = (self.network(values).argmax(1) == targets).float().mean()
        self.log("accuracy", right, sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def main() -> None:
    """Train, and print the loss of every epoch and the accuracy in the end, on rank 0."""
    parser = argparse.ArgumentParser(description="Train on digits with Lightning's Trainer.")
    parser.add_argument("--backend", default="hopsum")
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args()

    lightning.seed_everything(1, verbose=False)
    ranks, here = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
    trainer = lightning.Trainer(
        accelerator="cpu",
        num_nodes=ranks // here,
        devices=here,
        strategy=DDPStrategy(process_group_backend=options.backend),
        max_epochs=options.epochs,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    train, test = images()
    loader = DataLoader(train, 96 // ranks, shuffle=True)
    trainer.fit(Digits(), loader, DataLoader(test, 96))
    if trainer.is_global_zero:
        print(f"accuracy {trainer.callback_metrics['accuracy']:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
