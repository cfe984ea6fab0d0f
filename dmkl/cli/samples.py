"""Which samples a command uses: found by name, by split, in files."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dmkl
from dmkl.cli.output import say_aside
from dmkl.cli.parsing import known_names, parse_names
from dmkl.errors import InputError
from dmkl.searching.texts import count

if TYPE_CHECKING:
    import xarray as xr

    from dmkl.arrays import Array, Index
    from dmkl.kernelset import KernelSet, Split

__all__ = [
    "ROWS",
    "chosen_rows",
    "columns_of_model",
    "open_kernels",
    "positions",
    "predict_command",
    "read_groups",
    "stored_split",
    "training_samples",
]


def open_kernels(store: str, names: str | None) -> KernelSet:
    """A stored set, or those of its kernels that are named, with commas between them."""
    K, chosen = dmkl.open(store), parse_names(names)
    return K if chosen is None else K.select(chosen)


def positions(samples: Array, names: Array | Sequence[str], where: str) -> Index:
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


def columns_of_model(K: KernelSet, estimator: Any, model: Any) -> Index:
    """Where the training samples of a model stand among the columns of a set, which may be turned by mistake."""
    trained = set(estimator.train_samples_)
    if not trained & set(K.train_samples.astype(str)) and trained & set(K.samples.astype(str)):
        msg = (
            f"the rows of the set are the training samples of the model {model}, and its columns are others: the "
            "kernels are the wrong way round. New samples are the rows; transpose the matrices and import them again"
        )
        raise InputError(msg)
    return positions(K.train_samples, estimator.train_samples_, f"the model {model}")


ROWS = "FILE or 0,5,10:20"
"""What --rows takes, in help and messages."""


def chosen_rows(K: KernelSet, text: str) -> Index:
    """The rows that --rows chooses: of a file of names, or of one with 0 or 1 for each sample, or by position.

    Positions count from 0, with commas between them; 10:20 are those from 10 up to 19.

    Raises
    ------
    InputError
        If it is none of these, nothing is chosen, or a sample is there twice.
    """
    import numpy as np

    n = K.shape[1]
    if Path(text).is_file():
        from dmkl.inputs import read_file, read_names

        table = read_file(Path(text), samples=known_names(K))
        found = _masked(table.values) if table.values.shape == (n,) and table.row_names is None else None
        found = positions(K.samples, read_names(Path(text), known_names(K)), text) if found is None else found
    else:
        parts = [_positions_in(part.strip(), text, n) for part in text.split(",")]
        found = np.array([position for part in parts for position in part], dtype=np.int64)
    if not len(found):
        msg = f"--rows {text} chooses none of the {count(n, 'sample')}; name some, or leave it out"
        raise InputError(msg)
    if len(np.unique(found)) < len(found):
        twice = next(int(k) for k in found if (found == k).sum() > 1)
        msg = f"--rows {text} has position {twice} more than once; each sample is taken once"
        raise InputError(msg)
    return found


def _masked(values: Array) -> Index | None:
    """The rows of a mask, a truth value for each sample; None where the values are something else, names say."""
    import numpy as np

    words = {"1": True, "1.0": True, "true": True, "0": False, "0.0": False, "false": False}
    told = [words.get(str(value).lower()) for value in values]
    if None in told:
        return None
    return np.flatnonzero(np.array(told, dtype=bool))


def _positions_in(part: str, text: str, n: int) -> range:
    start, colon, stop = part.partition(":")
    try:
        first = int(start) if start or not colon else 0
        last = first + 1 if not colon else int(stop) if stop else n
    except ValueError:
        msg = (
            f"--rows takes positions from 0, such as 0,5,10:20, or a file of names, or of 0 and 1 for each sample; "
            f"{text!r} is no file that is there, and {part!r} no position"
        )
        raise InputError(msg) from None
    if not 0 <= first <= last <= n:
        msg = f"--rows {text}: {part} is not among the positions of this set's {count(n, 'sample')}, 0 to {n - 1}"
        raise InputError(msg)
    return range(first, last)


def predict_command(model: Any, out: str, K: KernelSet, store: str) -> str:
    """The command that predicts with a saved model: the samples of its set that it has not seen, or else new ones."""
    if set(K.samples.astype(str)) - set(model.train_samples_):
        return shlex.join(["dmkl", "predict", out, store])
    new = ["NEW_SAMPLES"] if isinstance(model.features_, str) else ["--features", "NEW_SAMPLES"]
    return shlex.join(["dmkl", "predict", out, *new])


def stored_split(K: KernelSet, number: int) -> Split:
    """A stored split; the error of one that is not there says how else samples are chosen."""
    if K.splits is None or number >= len(K.splits):
        has = "has no splits" if K.splits is None else f"has {len(K.splits)}, numbered from 0"
        msg = f"there is no split {number}: this set {has}; leave out --split, or choose samples by --rows {ROWS}"
        raise InputError(msg)
    return K.split(number)


def training_samples(
    K: KernelSet, split: int | None, train: Path | None, every: bool, least: int = 0
) -> tuple[Index, str]:
    """Positions of the samples that --split, --train or --all choose, and in words which.

    Those of classes that have fewer than `least` of them are left out.
    """
    chosen, on = _chosen_samples(K, split, train, every)
    return (chosen, on) if least == 0 else _without_small_classes(K, chosen, on, least)


def _without_small_classes(K: KernelSet, chosen: Index, on: str, least: int) -> tuple[Index, str]:
    import numpy as np

    if K.labels is None or K.labels.ndim != 1:
        has = "has no labels" if K.labels is None else "has labels of tasks, which are 0 or 1 each"
        msg = f"--drop-classes-below leaves classes of few samples out, and this set {has}; leave the option out"
        raise InputError(msg)
    classes, index, sizes = np.unique(K.labels[chosen], return_inverse=True, return_counts=True)
    small = classes[sizes < least]
    if len(classes) - len(small) < 2:
        msg = (
            f"--drop-classes-below {least} leaves {count(len(classes) - len(small), 'class')} of "
            f"{len(classes)}, and learning needs two; the largest have "
            f"{', '.join(map(str, np.sort(sizes)[:-4:-1]))} samples, so give a smaller number"
        )
        raise InputError(msg)
    kept = chosen[sizes[index] >= least]
    if not len(small):
        return kept, on
    names = ", ".join(map(str, small[:10])) + (" …" if len(small) > 10 else "")
    return kept, f"{on}; without {count(len(small), 'class')} of fewer than {least}: {names}"


def _chosen_samples(K: KernelSet, split: int | None, train: Path | None, every: bool) -> tuple[Index, str]:
    import numpy as np

    if sum((split is not None, train is not None, every)) > 1:
        msg = "--split, --train and --all exclude one another; give one of them"
        raise InputError(msg)
    if train is not None:
        from dmkl.inputs import read_names

        return positions(K.samples, read_names(train, known_names(K)), str(train)), f"those in {train}"
    if every or (split is None and K.splits is None):
        return np.arange(K.shape[1]), "all"
    chosen = K.split(split or 0).train
    if not len(chosen):
        msg = f"split {split or 0} has no training samples; choose another with --split, or give --train or --all"
        raise InputError(msg)
    return chosen, f"the training part of split {split or 0}"


def read_groups(file: Path, samples: Array, chosen: Index) -> xr.DataArray:
    """The group of each chosen sample, by name, or from a vector in the order of the set.

    It is called after the file, and results say so.
    """
    import numpy as np
    import xarray as xr

    from dmkl.inputs import read_file
    from dmkl.inputs.label_tables import matched
    from dmkl.inputs.labels import in_order

    n = len(samples)
    named = samples.astype(str).tolist() != [str(i) for i in range(n)]
    table = read_file(file, samples=samples if named else None)
    for note in table.notes:
        say_aside("note", note)
    if named and table.row_names is not None:
        values, rows = in_order(str(file), table, samples[chosen].astype(str).tolist()).values, np.arange(len(chosen))
    elif named and table.values.ndim == 1:
        say_aside("note", f"{file} has no names of samples: row i was taken for sample i ({samples[0]} is row 0)")
        values, rows = table.values, chosen
    else:
        values, rows = np.asarray(matched(str(file), table, samples, named=named).values), chosen
    expected = len(chosen) if rows is not chosen else n
    if values.shape != (expected,):
        msg = (
            f"{file} has shape {values.shape}, expected ({expected},), a group for each sample of the set in its "
            f"order, or a table of sample names and groups; of several columns name that of the groups, {file}:NAME"
        )
        raise InputError(msg)
    return xr.DataArray(values[rows], {"sample": samples[chosen].astype(str)}, name=str(file))
