"""Train a small character model (a GPT) with FSDP on text that ships with Python.

    hopsum torchrun --topology star:4 --workers 3 examples/fsdp_gpt/train.py

or, without a cluster, `torchrun --nproc-per-node 3 train.py --backend gloo`.
"""

from __future__ import annotations

import argparse
import time
from pydoc_data.topics import topics

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

CONTEXT, WIDTH, HEADS, LAYERS = 48, 64, 4, 2
CHARACTERS = 100_000
EVERY = 10
"""Steps between two lines."""


class Model(nn.Module):
    """A transformer that says which character comes next, of some 110,000 parameters."""

    def __init__(self, characters: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(characters, WIDTH)
        self.places = nn.Embedding(CONTEXT, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
            )
            for _ in range(LAYERS)
        )
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, characters)

    def forward(self, lines: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of lines of one character more than is read: [batch, place]."""
        text, following = lines[:, :-1], lines[:, 1:]
        mask = nn.Transformer.generate_square_subsequent_mask(text.shape[1])
        values = self.characters(text) + self.places(torch.arange(text.shape[1]))
        for layer in self.layers:
            values = layer(values, mask, is_causal=True)
        logits = self.head(self.norm(values)).float()
        return nn.functional.cross_entropy(logits.flatten(0, 1), following.flatten())


def read_text() -> tuple[torch.Tensor, int]:
    """Return the beginning of Python's language reference as numbers, and how many there are."""
    text = "".join(topics[name] for name in sorted(topics))[:CHARACTERS]
    letters = sorted(set(text))
    return torch.tensor([letters.index(letter) for letter in text]), len(letters)


def main() -> None:
    """Train, and print the loss every few steps, on rank 0."""
    parser = argparse.ArgumentParser(description="Train a character model with FSDP.")
    parser.add_argument("--backend", default="hopsum")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=12, help="lines a step, of all ranks")
    parser.add_argument("--bfloat16", action="store_true", help="compute, and sum, in bfloat16")
    options = parser.parse_args()

    dist.init_process_group(options.backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    torch.set_num_threads(1)
    text, characters = read_text()
    model = Model(characters)
    policy = MixedPrecisionPolicy()
    if options.bfloat16:
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    for layer in (*model.layers, model):
        fully_shard(layer, mp_policy=policy)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(2)

    began, total = time.monotonic(), torch.zeros(())
    for step in range(1, options.steps + 1):
        starts = torch.randint(len(text) - CONTEXT, (options.batch,), generator=generator)
        lines = torch.stack([text[start : start + CONTEXT + 1] for start in starts[rank::size]])
        optimizer.zero_grad()
        loss = model(lines)
        loss.backward()
        optimizer.step()
        total = total + loss.detach()
        if step % EVERY == 0:
            dist.all_reduce(total, dist.ReduceOp.AVG)
            if rank == 0:
                took = 1000 * (time.monotonic() - began) / EVERY
                print(f"step {step}: loss {total / EVERY:.6f}, {took:.1f} ms a step", flush=True)
            began, total = time.monotonic(), torch.zeros(())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
