"""Which samples a command uses: found by name, by split, in files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import dmkl
from dmkl.cli.parsing import parse_names
from dmkl.errors import InputError
from dmkl.searching.texts import count

if TYPE_CHECKING:
    from dmkl.arrays import Array, Index
    from dmkl.kernelset import KernelSet

__all__ = ["open_kernels", "positions", "read_groups", "training_samples"]


def open_kernels(store: str, names: str | None) -> KernelSet:
    """A stored set, or those of its kernels that are named, with commas between them."""
    K, chosen = dmkl.open(store), parse_names(names)
    return K if chosen is None else K.select(chosen)


def positions(samples: Array, names: Array, where: str) -> Index:
    """Where `names`, which come from `where`, stand among `samples`: each has to be there, and only once."""
    import numpy as np

    place = {str(name): position for position, name in enumerate(samples)}
    wanted = [str(name) for name in np.ravel(names)]
    missing = [name for name in wanted if name not in place]
    if missing:
        msg = (
            f"{where} has {count(len(missing), 'name')} that no sample of the set bears, the first is "
            f"{missing[0]!r}; the samples are called {', '.join(map(repr, list(place)[:3]))} …"
        )
        raise InputError(msg)
    if len(set(wanted)) != len(wanted):
        twice = next(name for name in wanted if wanted.count(name) > 1)
        msg = f"{where} names sample {twice!r} more than once"
        raise InputError(msg)
    return np.array([place[name] for name in wanted], dtype=np.int64)


def training_samples(K: KernelSet, split: int | None, train: Path | None, every: bool) -> tuple[Index, str]:
    """Positions of the samples that --split, --train or --all choose, and in words which."""
    import numpy as np

    if sum((split is not None, train is not None, every)) > 1:
        msg = "--split, --train and --all exclude one another; give one of them"
        raise InputError(msg)
    if train is not None:
        from dmkl.inputs import read_vector

        return positions(K.samples, read_vector(train), str(train)), f"those in {train}"
    if every or (split is None and K.splits is None):
        return np.arange(K.shape[1]), "all"
    chosen = K.split(split or 0).train
    if not len(chosen):
        msg = f"split {split or 0} has no training samples; choose another with --split, or give --train or --all"
        raise InputError(msg)
    return chosen, f"the training part of split {split or 0}"


def read_groups(file: Path, samples: Array, chosen: Index) -> Array:
    """The group of each chosen sample, from a vector in the order of the set or a table with sample names."""
    import numpy as np

    from dmkl.inputs import read_file

    table = read_file(file)
    values: Array = table.values
    names = table.row_names
    if names is None and values.ndim == 2 and values.shape[1] == 2:
        names, values = tuple(values[:, 0].astype(str)), values[:, 1]
    n = len(samples)
    if values.ndim != 1 or (names is None and len(values) != n):
        msg = (
            f"{file} has shape {values.shape}, expected ({n},), a group for each sample of the set in its order, or a "
            "table of sample names and groups"
        )
        raise InputError(msg)
    row = np.arange(n) if names is None else np.full(n, -1)
    if names is not None:
        row[positions(samples, np.array(names), str(file))] = np.arange(len(names))
    missing = samples[chosen[row[chosen] < 0]]
    if len(missing):
        msg = f"{file} has no group for {count(len(missing), 'sample')} of the set, the first is {str(missing[0])!r}"
        raise InputError(msg)
    found: Array = values[row[chosen]]
    return found
