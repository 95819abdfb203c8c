"""Train a character model with Hugging Face Accelerate on text that ships with Python.

    hopsum torchrun --topology star:4 --workers 3 examples/accelerate_text/train.py

or, without a cluster, `torchrun --nproc-per-node 3 train.py --backend gloo`.
"""

from __future__ import annotations

import argparse
import time
from pydoc_data.topics import topics

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CONTEXT, WIDTH = 32, 96
CHARACTERS = 40_000
HELD_OUT = 100
"""Lines that the training does not see."""


class Model(nn.Module):
    """A recurrent network that says which character comes next, of some 80,000 parameters."""

    def __init__(self, characters: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(characters, WIDTH)
        self.layer = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, characters)

    def forward(self, lines: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of lines of one character more than is read: [batch, place]."""
        values, _ = self.layer(self.characters(lines[:, :-1]))
        return nn.functional.cross_entropy(self.head(values).flatten(0, 1), lines[:, 1:].flatten())


def read_lines() -> tuple[torch.Tensor, int]:
    """Return lines of Python's language reference as numbers, and how many numbers there are."""
    text = "".join(topics[name] for name in sorted(topics))[:CHARACTERS]
    letters = sorted(set(text))
    numbers = torch.tensor([letters.index(letter) for letter in text])
    return numbers.unfold(0, CONTEXT + 1, CONTEXT), len(letters)


def main() -> None:
    """Train, and print on the main process the loss of every epoch, and that of the held-out."""
    parser = argparse.ArgumentParser(description="Train a character model with Accelerate.")
    parser.add_argument("--backend", default="hopsum")
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()

    # On CPUs Accelerate itself knows gloo and MPI alone, and takes a group that is there.
    dist.init_process_group(options.backend)
    torch.manual_seed(1)
    accelerator = Accelerator(cpu=True)
    lines, characters = read_lines()
    batch = 48 // accelerator.num_processes
    loader = DataLoader(TensorDataset(lines[HELD_OUT:]), batch, shuffle=True, drop_last=True)
    held_out = DataLoader(TensorDataset(lines[:HELD_OUT]), batch)
    model = Model(characters)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    model, optimizer, loader, held_out = accelerator.prepare(model, optimizer, loader, held_out)

    for epoch in range(options.epochs):
        began, total = time.monotonic(), torch.zeros(())
        for (each,) in loader:
            optimizer.zero_grad()
            loss = model(each)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            total += loss.detach()
        mean = accelerator.reduce(total, "mean") / len(loader)
        took = 1000 * (time.monotonic() - began) / len(loader)
        accelerator.print(f"epoch {epoch + 1}: loss {mean:.6f}, {took:.1f} ms a step", flush=True)
    with torch.no_grad():
        losses = [accelerator.gather_for_metrics(model(each)[None]) for (each,) in held_out]
    accelerator.print(f"held out: loss {torch.cat(losses).mean():.6f}", flush=True)
    accelerator.end_training()  # destroys the group


if __name__ == "__main__":
    main()
