"""A small classifier for handwritten digits, trained data-parallel.

The data are scikit-learn's 1,797 real 8x8 images (UCI optical recognition of handwritten digits);
the model is a perceptron with one hidden layer, trained by gradient descent with momentum.
Everything is float32 numpy, so that a sum of gradients from anywhere can be put in.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hopsum.collectives.workload import Digits as Digits
from hopsum.protocol.extras import require

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Images:
    """Images (n, 64) scaled to 0..1, and their classes (n,)."""

    train: Floats
    train_classes: NDArray[np.int64]
    test: Floats
    test_classes: NDArray[np.int64]


@cache
def load_images() -> Images:
    """Scikit-learn's digits, shuffled once with a fixed seed and split."""
    table = _table()
    order = np.random.default_rng(0).permutation(len(table))
    images = (table[order, :-1] / 16).astype(np.float32)
    classes = table[order, -1].astype(np.int64)
    split = Digits.TRAIN_IMAGES
    return Images(images[:split], classes[:split], images[split:], classes[split:])


def _table() -> NDArray[np.float64]:
    """Scikit-learn's file: one row per image, its class last.

    Every worker reads it. Importing scikit-learn takes ten times as long, two seconds of CPU time.
    """
    require("sklearn", "digits")
    package = find_spec("sklearn")
    assert package is not None
    assert package.origin is not None
    file = Path(package.origin).with_name("datasets") / "data" / "digits.csv.gz"
    with gzip.open(file, "rt", encoding="ascii") as text:
        return np.loadtxt(text, delimiter=",")


@cache
def _one_thread_for_matrices() -> None:
    """Restrict OpenBLAS to one thread: several took fifty times the CPU time for small matrices."""
    from threadpoolctl import threadpool_limits

    threadpool_limits(1, user_api="blas")


@dataclass
class DigitsTraining:
    """One replica of the model and its training progress; replicas of one seed stay equal.

    `finished` after `epochs` epochs; `losses` holds the mean training loss of every epoch.
    """

    seed: int
    epochs: int
    rate: float = 0.3
    momentum: float = 0.9
    losses: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        _one_thread_for_matrices()
        generator = np.random.default_rng([self.seed, 1])
        weights = [
            generator.normal(0, (2 / shape[0]) ** 0.5, shape)
            if len(shape) == 2
            else np.zeros(shape)
            for shape in Digits.SHAPES
        ]
        self.parameters: Floats = np.concatenate([w.ravel() for w in weights]).astype(np.float32)
        self._velocity = np.zeros_like(self.parameters)
        self._order_generator = np.random.default_rng([self.seed, 2])
        self._order = self._order_generator.permutation(Digits.TRAIN_IMAGES)
        self._step = 0

    @property
    def finished(self) -> bool:
        """Whether all epochs are done."""
        return self._step == self.epochs * Digits.STEPS_PER_EPOCH

    def _unpack(self, flat: Floats) -> list[Floats]:
        parts = []
        start = 0
        for shape in Digits.SHAPES:
            size = int(np.prod(shape))
            parts.append(flat[start : start + size].reshape(shape))
            start += size
        return parts

    def _forward(self, images: Floats) -> tuple[Floats, Floats]:
        """Return hidden activations (n, 512) and class probabilities (n, 10)."""
        w1, b1, w2, b2 = self._unpack(self.parameters)
        hidden = np.maximum(images @ w1 + b1, 0)
        scores = hidden @ w2 + b2
        scores -= scores.max(axis=1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=1, keepdims=True)
        return hidden, scores

    def gradient(self, start: int, stop: int) -> Floats:
        """Return part start..stop of the current batch's mean-loss gradient, flat (PARAMETERS,).

        The parts of a partition of 0..BATCH add up to the whole batch's gradient.
        """
        position = self._step % Digits.STEPS_PER_EPOCH * Digits.BATCH
        chosen = self._order[position + start : position + stop]
        images, classes = load_images().train[chosen], load_images().train_classes[chosen]
        _, _, w2, _ = self._unpack(self.parameters)
        hidden, delta = self._forward(images)
        delta[np.arange(len(chosen)), classes] -= 1
        delta /= np.float32(Digits.BATCH)
        back = (delta @ w2.T) * (hidden > 0)
        parts = (images.T @ back, back.sum(axis=0), hidden.T @ delta, delta.sum(axis=0))
        return np.concatenate([part.ravel() for part in parts]).astype(np.float32, copy=False)

    def step(self, gradient: Floats) -> None:
        """Take a gradient step on the current batch and advance to the next one."""
        self._velocity *= np.float32(self.momentum)
        self._velocity -= np.float32(self.rate) * gradient
        self.parameters += self._velocity
        self._step += 1
        if self._step % Digits.STEPS_PER_EPOCH == 0:
            self.losses.append(self.loss())
            self._order = self._order_generator.permutation(Digits.TRAIN_IMAGES)

    def loss(self) -> float:
        """Return the mean cross entropy on the training images."""
        images = load_images()
        _, probabilities = self._forward(images.train)
        chosen = probabilities[np.arange(len(images.train)), images.train_classes]
        return float(-np.log(np.maximum(chosen, 1e-12)).mean())

    def accuracy(self) -> float:
        """Fraction of test images classified correctly."""
        images = load_images()
        _, probabilities = self._forward(images.test)
        return float((probabilities.argmax(axis=1) == images.test_classes).mean())


def train_alone(seed: int, epochs: int) -> DigitsTraining:
    """Train in one process, for comparison: the same batches, no all-reduce."""
    training = DigitsTraining(seed, epochs)
    while not training.finished:
        training.step(training.gradient(0, Digits.BATCH))
    return training
