"""Read the kernels of an image set from MATLAB files, for `published_images.py`.

The papers do not say how the files of their kernels are laid out. These arrays are read, whatever the names of the
files (MATLAB 7.3: save them again with `-v7`, one kernel in each file):

- `labels`: (images, labels) or (labels, images) of the VOC sets, 1 where the image has the object and 0 or −1 where it
  has not (beside −1, 0 means that it is not known); a vector of the classes for Caltech101;
- kernels: square matrices (images, images). Or squares (n, n) of the first n images, and as many matrices of the other
  images, which are only tested, and these n, in the same order;
- `trnN`, `valN` and `tstN`: the images of split N, counted from one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from scipy.io import loadmat, whosmat
from scipy.spatial.distance import pdist, squareform

import dmkl


def read(folder: Path, store: Path, sizes: Sequence[int] = (), n_noise: int = 0) -> dmkl.KernelSet:
    """Store the kernels of a folder, noise kernels last; without index vectors the parts have `sizes`, in order."""
    shapes = {(file, name): shape for file in sorted(folder.glob("*.mat")) for name, shape, _ in whosmat(file)}
    named = {name: load(file, name) for file, name in shapes if re.fullmatch(r"labels|(trn|val|tst)\d+", name)}
    squares = [key for key, shape in shapes.items() if key[1] not in named and len(shape) == 2 and len({*shape}) == 1]
    labels = named.get("labels", np.empty((0, 0)))
    labels = labels.ravel() if 1 in labels.shape else labels.T if labels.shape[0] < labels.shape[1] else labels
    m, n = len(labels), shapes[squares[0]][0] if squares else 0
    crosses = [key for key, shape in shapes.items() if key[1] not in named and n < m and {*shape} == {n, m - n}]
    if not 1 < n <= m or any(shapes[key] != (n, n) for key in squares) or (n < m and len(crosses) != len(squares)):
        listed = ", ".join(f"{name} {shape}" for (_, name), shape in shapes.items()) or "none"
        msg = f"{folder} must hold labels, and kernels of all images or squares with as many matrices of other images"
        msg = f"{msg}; it has {listed}"
        raise SystemExit(msg)
    if labels.ndim == 2 and (labels < 0).any():
        labels = np.where(labels == 0, np.nan, labels > 0)

    def matrices() -> Iterator[np.ndarray]:
        for place, key in enumerate(squares):
            matrix = load(*key).astype(np.float32)
            if n < m:  # no fit reads the entries between two images that are only tested
                cross = load(*crosses[place]).astype(np.float32)
                cross = cross if cross.shape == (m - n, n) else cross.T
                matrix = np.block([[matrix, cross.T], [cross, np.eye(m - n, dtype=np.float32)]])
            yield matrix
        for seed in range(n_noise):
            distances = squareform(pdist(np.random.default_rng(seed).standard_normal((m, 16)), "sqeuclidean"))
            yield np.exp(-distances / distances.mean()).astype(np.float32)

    names = [f"{file.stem}-{name}" for file, name in squares] + [f"noise-{k}" for k in range(n_noise)]
    given = {"labels": labels, "splits": make_splits(named, m, sizes)}
    return dmkl.create(store, matrices(), names=names, dtype="float32", symmetrize=True, **given)


def load(file: Path, name: str) -> np.ndarray:
    """Return one array of a file."""
    return np.asarray(loadmat(file, variable_names=[name])[name])


def make_splits(named: Mapping[str, np.ndarray], m: int, sizes: Sequence[int]) -> np.ndarray:
    """Return the splits (split, image), of the index vectors or of parts one after another.

    Where no part is for validation the tested images have its code, 1: parameters are then chosen by them.
    """
    numbers = sorted({match[1] for name in named if (match := re.fullmatch(r"trn(\d+)", name))})
    if not numbers:
        if sum(sizes) != m:
            msg = f"without index vectors (trn1, tst1, …) there must be {sum(sizes):,} images; labels has {m:,}"
            raise SystemExit(msg)
        return np.repeat(np.arange(len(sizes), dtype=np.int8), sizes)[None]
    splits = np.full((len(numbers), m), -1, dtype=np.int8)
    for split, number in zip(splits, numbers, strict=True):
        parts = [part + number for part in ("trn", "val", "tst") if part + number in named]
        for code, part in enumerate(parts):
            split[named[part].ravel().astype(np.int64) - 1] = code
    return splits
