"""A small model, and how the PyTorch tests train it."""

from __future__ import annotations

import torch


def model() -> torch.nn.Module:
    """Always the same one."""
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))


def train(net: torch.nn.Module, images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """All parameters, flat, after five steps."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(images), targets).backward()
        optimizer.step()
    return torch.cat([p.detach().reshape(-1) for p in net.parameters()])
