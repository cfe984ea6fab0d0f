"""Small data sets in the formats of the published experiments, built from scikit-learn's handwritten digits.

They have the published number of views, weak views, and the published layout of classes, labels, splits and files. The
images differ, so scores cannot be compared with published ones; only qualitative conclusions can.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.io import savemat
from scipy.spatial.distance import cdist
from sklearn.datasets import load_digits

import dmkl

N_CLASSES = 10


@dataclass(frozen=True)
class Views:
    """Non-negative features by name, labels, and splits in the format of dmkl."""

    tables: dict[str, np.ndarray]
    labels: np.ndarray
    splits: np.ndarray


def _images() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return digits scaled to [0, 1], their classes, and the pixels that are not always white."""
    images, labels = load_digits(return_X_y=True)
    return images / 16, labels, np.flatnonzero(images.std(axis=0) > 1.6)


def pairs(n: int, n_views: int, n_pixels: int, n_splits: int = 1, seed: int = 0) -> Views:
    """Return samples of two superimposed digits, labelled by the digits present, like objects in a photo.

    A quarter of the samples is for training, a quarter for validation, a half for testing, as in VOC2007.
    """
    rng = np.random.default_rng(seed)
    images, classes, pixels = _images()
    both = rng.integers(len(images), size=(n, 2))
    pictures = images[both].max(axis=1)
    labels = (classes[both][:, :, None] == np.arange(N_CLASSES)).any(axis=1).astype(np.int8)
    chosen = [rng.choice(pixels, n_pixels, replace=False) for _ in range(n_views)]
    quarter = np.minimum(np.arange(n) * 4 // n, 2).astype(np.int8)
    splits = np.stack([rng.permutation(quarter) for _ in range(n_splits)])
    return Views({f"view {k}": pictures[:, columns] for k, columns in enumerate(chosen, 1)}, labels, splits)


def flowers(folder: Path, n_features: int = 7, n_pixels: int = 4, seed: int = 0) -> None:
    """Write files like those of Flower17: distances by feature, 80 samples of each class in order, three splits."""
    rng = np.random.default_rng(seed)
    images, classes, pixels = _images()
    kept = np.concatenate([rng.permutation(np.flatnonzero(classes == k))[:80] for k in range(N_CLASSES)])
    tables = [images[kept][:, rng.choice(pixels, n_pixels, replace=False)] for _ in range(n_features)]
    folder.mkdir(parents=True, exist_ok=True)
    distances = {f"D_feature{k}": cdist(table, table, "cityblock") for k, table in enumerate(tables, 1)}
    savemat(folder / "distancematrices.mat", distances)
    splits = {}
    for number in (1, 2, 3):
        order = np.stack([80 * k + rng.permutation(80) for k in range(N_CLASSES)]) + 1
        cuts = np.split(order, [40, 60], axis=1)
        splits |= {f"{part}{number}": cut.reshape(1, -1) for part, cut in zip(("trn", "val", "tst"), cuts, strict=True)}
    savemat(folder / "datasplits.mat", splits)


def proteins(folder: Path, n: int = 300, n_kernels: int = 12, n_splits: int = 30, seed: int = 0) -> None:
    """Write files like those of a protein set: one kernel in each, four similar classes, an order for each split."""
    rng = np.random.default_rng(seed)
    images, classes, pixels = _images()
    rows = rng.permutation(np.flatnonzero(np.isin(classes, (3, 5, 8, 9))))[:n]
    folder.mkdir(parents=True, exist_ok=True)
    for k in range(n_kernels):
        # One to six pixels: the accuracy of the kernels differs.
        table = images[rows][:, rng.choice(pixels, 1 + k % 6, replace=False)]
        squares = cdist(table, table, "sqeuclidean")
        savemat(folder / f"kernel{k:02d}.mat", {"K": np.exp(-squares / squares.mean())})
    savemat(folder / "labels.mat", {"y": classes[rows][:, None].astype(np.float64)})
    savemat(folder / "splits.mat", {"orders": np.stack([rng.permutation(n) + 1 for _ in range(n_splits)])})


def build(path: Path, views: Views, functions: tuple[str, ...], n_noise: int = 0) -> dmkl.KernelSet:
    """Build kernels of each view by each function, noise kernels last; open the set if it exists."""
    if path.exists():
        return dmkl.open(path)
    specs = [{"function": name, "feature": view, "bandwidth": 1} for name in functions for view in views.tables]
    specs += [{"function": "random_rbf", "copies": n_noise}] if n_noise else []
    return dmkl.build(path, views.tables, specs, labels=views.labels, splits=views.splits, dtype="float32")
