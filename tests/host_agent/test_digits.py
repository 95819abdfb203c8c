"""The images that agents train on."""

from __future__ import annotations

import numpy as np
import pytest

from hopsum.host_agent.digits import load_images


@pytest.mark.slow
def test_the_images_are_those_of_scikit_learn() -> None:
    """Read without importing it."""
    from sklearn.datasets import load_digits

    theirs = load_digits()
    ours = load_images()
    images = np.concatenate([ours.train, ours.test])
    classes = np.concatenate([ours.train_classes, ours.test_classes])
    order = np.random.default_rng(0).permutation(len(theirs.target))
    np.testing.assert_array_equal(16 * images, theirs.data[order])
    np.testing.assert_array_equal(classes, theirs.target[order])
