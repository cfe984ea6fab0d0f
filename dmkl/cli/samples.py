"""Which samples a command uses: by name, by split, by file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import dmkl
from dmkl.cli.options import Records, Unknown, samples_option
from dmkl.cli.output import say_aside
from dmkl.cli.parsing import parse_names, sample_names
from dmkl.description import count
from dmkl.errors import first_names, refuse

if TYPE_CHECKING:
    import xarray as xr

    from dmkl.arrays import Array, Index
    from dmkl.kernelset import KernelSet


@dataclass(frozen=True, kw_only=True)
class TrainingSamples:
    """The options that choose the samples of a command."""

    split: Annotated[int | None, samples_option("The training part of a stored split.", "K", min=0)] = None
    train: Annotated[Path | None, samples_option("Samples in this file, one name a line.", "FILE")] = None
    every: Annotated[bool, samples_option("Use all samples.", None, "--all")] = False
    records: Records = None
    labels: Annotated[Path | None, samples_option("Labels in place of the stored ones.", "FILE")] = None

    def open(self, store: str, kernels: str | None) -> KernelSet:
        """The set of a command, of records where they are asked for, with the labels that are given."""
        return open_kernels(store, kernels, self.records, self.labels)

    def choose(self, K: KernelSet, *, all_by_default: bool = False) -> tuple[Index, str]:
        """Positions and description of the chosen samples: by default the training part of split 0, or all of them."""
        import numpy as np

        if sum((self.split is not None, self.train is not None, self.every)) > 1:
            refuse("--split, --train and --all exclude one another; give one of them")
        if self.train is not None:
            from dmkl.inputs import read_names

            names = read_names(self.train, sample_names(K))
            return find_names(K.samples, names, str(self.train)), f"those in {self.train}"
        if self.every or (self.split is None and (all_by_default or K.splits is None)):
            return np.arange(K.shape[1]), "all"
        number = self.split or 0
        chosen = K.split(number).train
        if not len(chosen):
            refuse(f"split {number} has no training samples; choose another with --split, or give --train or --all")
        return chosen, f"the training part of split {number}"


@dataclass(frozen=True, kw_only=True)
class Samples(TrainingSamples):
    """The options that choose the samples of a command that trains."""

    unknown: Unknown = None
    drop_classes_below: Annotated[int, samples_option("Leave smaller classes out.", "N", min=0, show_default=False)] = 0

    def choose(self, K: KernelSet, *, all_by_default: bool = False) -> tuple[Index, str]:
        """Positions of the chosen samples of known labels and of large classes, and their description."""
        import numpy as np

        chosen, on = super().choose(K, all_by_default=all_by_default)
        if K.labels is not None and K.labels.ndim == 2:
            from dmkl.arrays import is_known

            has_label = is_known(K.labels[chosen]).any(axis=1)
            if not has_label.all() and has_label.any():
                on += f"; without {count(int((~has_label).sum()), 'sample')} whose label is not known"
                chosen = chosen[has_label]
        least = self.drop_classes_below
        if least == 0:
            return chosen, on
        if K.labels is None or K.labels.ndim != 1:
            has = "has no labels" if K.labels is None else "has labels of tasks, which are 0 or 1 each"
            refuse(f"--drop-classes-below leaves classes of few samples out, and this set {has}; leave the option out")
        classes, index, sizes = np.unique(K.labels[chosen], return_inverse=True, return_counts=True)
        small = classes[sizes < least]
        if len(classes) - len(small) < 2:
            left = f"{count(len(classes) - len(small), 'class')} of {len(classes)}, and learning needs two"
            largest = ", ".join(map(str, np.sort(sizes)[:-4:-1]))
            way_out = f"the largest have {largest} samples, so give a smaller number"
            refuse(f"--drop-classes-below {least} leaves {left}; {way_out}")
        if len(small):
            on += f"; without {count(len(small), 'class')} of fewer than {least}: {first_names(small, 10)}"
        return chosen[sizes[index] >= least], on


def open_kernels(
    store: str, names: str | None = None, records: Path | None = None, labels: Path | None = None
) -> KernelSet:
    """A stored set, or those of its kernels that are named, separated by commas; of records, with other labels."""
    K, chosen = dmkl.open(store), parse_names(names)
    K = K if chosen is None else K.select(chosen)
    if records is not None:
        from dmkl.inputs import read_file

        table = read_file(records)
        if table.values.ndim != 1:
            columns = f"the columns of the table are {first_names(table.columns or ()) or 'without names'}"
            refuse(f"--records needs the column that names the sample of each record, {records}:NAME; {columns}")
        at = find_names(K.samples, table.values, str(records), repeated=True)
        K = K.repeat(at, range(len(at)) if table.row_names is None else table.row_names)
    K = K if labels is None else K.with_labels(labels)
    for note in K._label_notes:
        say_aside("note", note)
    return K


def find_names(samples: Array, names: Array | Sequence[str], source: str, *, repeated: bool = False) -> Index:
    """Positions of `names`, which come from `source`, among `samples`; only those of records may be `repeated`."""
    import numpy as np

    place = {str(name): position for position, name in enumerate(samples)}
    wanted = [str(name) for name in np.ravel(names)]
    missing = [name for name in wanted if name not in place]
    if missing:
        what = f"{source} has {count(len(missing), 'name')} that no sample of the set has"
        refuse(f"{what}, the first is {missing[0]!r}; the samples are called {', '.join(map(repr, list(place)[:3]))} …")
    if len(set(wanted)) != len(wanted) and not repeated:
        twice = next(name for name in wanted if wanted.count(name) > 1)
        refuse(f"{source} names sample {twice!r} more than once")
    return np.array([place[name] for name in wanted], dtype=np.int64)


def columns_of_model(K: KernelSet, estimator: Any, model: Any) -> Index:
    """Positions of the training samples of a model among the columns of a set. InputError if the set is transposed."""
    trained = set(estimator.train_samples_)
    if not trained & set(K.train_samples.astype(str)) and trained & set(K.samples.astype(str)):
        refuse(
            f"the rows of the set are the training samples of the model {model}, and its columns are others: the "
            "kernels are the wrong way round. New samples are the rows; transpose the matrices and import them again"
        )
    return find_names(K.train_samples, estimator.train_samples_, f"the model {model}")


ROWS = "FILE or 0,5,10:20"
"""The form of --rows, for messages."""


def select_rows(K: KernelSet, text: str) -> Index:
    """The rows that --rows chooses: names or a mask in a file, or positions from 0; 10:20 are those from 10 to 19."""
    import numpy as np

    n = K.shape[1]
    if Path(text).is_file():
        from dmkl.inputs import read_file, read_names

        table = read_file(Path(text), samples=sample_names(K))
        words = {"1": True, "1.0": True, "true": True, "0": False, "0.0": False, "false": False}
        mask = [words.get(str(value).lower()) for value in table.values] if table.values.shape == (n,) else [None]
        if None in mask or table.row_names is not None:
            rows = find_names(K.samples, read_names(Path(text), sample_names(K)), text)
        else:
            rows = np.flatnonzero(np.array(mask, dtype=bool))
    else:
        parts = [_positions_in(part.strip(), text, n) for part in text.split(",")]
        rows = np.array([position for part in parts for position in part], dtype=np.int64)
    if not len(rows):
        refuse(f"--rows {text} chooses none of the {count(n, 'sample')}; name some, or leave it out")
    if len(np.unique(rows)) < len(rows):
        twice = next(int(k) for k in rows if (rows == k).sum() > 1)
        refuse(f"--rows {text} has position {twice} more than once; each sample is taken once")
    return rows


def _positions_in(part: str, text: str, n: int) -> range:
    start, colon, stop = part.partition(":")
    try:
        first = int(start) if start or not colon else 0
        last = first + 1 if not colon else int(stop) if stop else n
    except ValueError:
        rule = "--rows takes positions from 0, such as 0,5,10:20, or a file of names, or of 0 and 1 for each sample"
        refuse(f"{rule}; {text!r} is no file that is there, and {part!r} no position", None)
    if not 0 <= first <= last <= n:
        refuse(f"--rows {text}: {part} is not among the positions of this set's {count(n, 'sample')}, 0 to {n - 1}")
    return range(first, last)


def read_groups(file: Path, samples: Array, chosen: Index) -> xr.DataArray:
    """The group of each chosen sample, by name or position; the array is named after the file, which results show."""
    import xarray as xr

    from dmkl.arrays import is_known, refuse_codes
    from dmkl.inputs.label_tables import given_data, matched

    n, notes = len(samples), list[str]()
    named = samples.astype(str).tolist() != [str(i) for i in range(n)]
    (item,) = given_data(groups=file)
    item.expected = samples if named else None
    if item.table.row_names is None:
        item.drop_header(n, notes)
    table = item.table
    for note in (*table.notes, *notes):
        say_aside("note", note)
    if not named and table.row_names is not None and not set(map(str, samples)) <= set(table.row_names):
        first = repr(table.row_names[0])
        what = f"{file} names its samples ({first} …), and this set has no names of samples"
        way_out = "Name the samples of the set (dmkl import --order FILE), or give a column of values alone"
        refuse(f"{what}, so nothing says which row is {first}. {way_out}, in its order")
    by_name = named and table.row_names is not None  # a file with names may lack other samples
    if named and not by_name and table.values.ndim == 1:
        say_aside("note", f"{file} has no names of samples: row i was taken for sample i ({samples[0]} is row 0)")
        values = table.values
    else:
        values = matched(str(file), table, samples[chosen] if by_name else samples, named=named).values
    n_expected = len(chosen) if by_name else n
    if values.shape != (n_expected,):
        refuse(
            f"{file} has shape {values.shape}, expected ({n_expected},), a group for each sample of the set in its "
            f"order, or a table of sample names and groups; of several columns name that of the groups, {file}:NAME"
        )
    way_out = "say so (--unknown '{code}') or write NA"
    refuse_codes(f"the groups in {file} are", values, way_out)
    if n_missing := int((~is_known(values)).sum()):
        refuse(f"{file} lacks the groups of {count(n_missing, 'sample')}; give each one, or leave them out (--train)")
    return xr.DataArray(values if by_name else values[chosen], {"sample": samples[chosen].astype(str)}, name=str(file))
