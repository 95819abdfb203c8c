"""A small CNN for scikit-learn's handwritten digits, and their images."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

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


def images() -> tuple[TensorDataset, TensorDataset]:
    """Return the images to train on, and those to test with."""
    digits = load_digits()
    values = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    targets = torch.tensor(digits.target)
    return (
        TensorDataset(values[:TRAINED], targets[:TRAINED]),
        TensorDataset(values[TRAINED:], targets[TRAINED:]),
    )
