"""The kernels of the demo: real handwritten digits seen in several ways, and noise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_digits
from sklearn.metrics.pairwise import euclidean_distances, linear_kernel, polynomial_kernel
from sklearn.model_selection import train_test_split

__all__ = ["Digits", "digits"]

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Digits:
    """1,797 digits of 8 × 8 pixels, and how their kernels are made.

    Parameters
    ----------
    views
        For each kernel: features (samples, features), and "linear", "polynomial" or the width of an RBF
        kernel as a multiple of the features' median distance.
    labels
        The digits, 0 to 9.
    split
        0 train, 2 test, stratified.
    """

    views: dict[str, tuple[Array, str | float]]
    labels: Array
    split: Array

    def kernels(self) -> Iterator[Array]:
        """The matrices, one at a time."""
        for features, function in self.views.values():
            if function == "linear":
                kernel = linear_kernel(features)
            elif function == "polynomial":
                kernel = polynomial_kernel(features, degree=3)
            else:
                kernel = _rbf(features, float(function))
            yield kernel.astype(np.float32)


def _rbf(features: Array, width: float) -> Array:
    squared = euclidean_distances(features, squared=True)
    return np.asarray(np.exp(squared / (-2 * width**2 * np.median(squared))))


def digits(seed: int = 0) -> Digits:
    """The data set that scikit-learn carries, so that the demo needs no network."""
    images, labels = load_digits(return_X_y=True)
    pixels = images.reshape(-1, 8, 8) / 16.0
    flat = pixels.reshape(-1, 64)
    noise = np.random.default_rng(seed).standard_normal((4, len(flat), 64))
    views: dict[str, tuple[Array, str | float]] = {
        "pixels, wide": (flat, 1.0),
        "pixels, medium": (flat, 0.5),
        "pixels, narrow": (flat, 0.25),
        "pixels, linear": (flat, "linear"),
        "pixels, cubic": (flat, "polynomial"),
        "upper left": (_part(pixels[:, :4, :4]), 0.5),
        "upper right": (_part(pixels[:, :4, 4:]), 0.5),
        "lower left": (_part(pixels[:, 4:, :4]), 0.5),
        "lower right": (_part(pixels[:, 4:, 4:]), 0.5),
        "row profile": (pixels.sum(axis=2), 0.5),
        "column profile": (pixels.sum(axis=1), 0.5),
        **{f"noise {number}": (features, 1.0) for number, features in enumerate(noise, 1)},
    }
    train, _ = train_test_split(np.arange(len(flat)), train_size=0.25, random_state=seed, stratify=labels)
    split = np.full(len(flat), 2, dtype=np.int8)
    split[train] = 0
    return Digits(views, labels, split)


def _part(pixels: Array) -> Array:
    return pixels.reshape(len(pixels), -1)
