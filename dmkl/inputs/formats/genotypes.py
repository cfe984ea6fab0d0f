"""Genotypes of PLINK: NAME.bed with NAME.bim and NAME.fam, read by bed-reader."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from dmkl.arrays import Array, Lazy
from dmkl.errors import damaged_as, first_names, needing, refuse
from dmkl.files.regular import check_regular
from dmkl.inputs.formats.file_arrays import FileArray
from dmkl.names import Individual


def bed_arrays(path: Path) -> list[FileArray]:
    """Return the dosages (individuals, variants): copies of allele A1 of the .bim, 0, 1 or 2, as float32.

    Rows are named by IID and FID of the .fam, columns by the ids of the .bim. Missing genotypes are NaN, which
    kernels replace with means over training samples (`dmkl.features.transforms`).
    """
    with needing("bed-reader", f"{path} is read with"):
        from bed_reader import open_bed
    for end in (".bim", ".fam"):
        with suppress(FileNotFoundError):  # of which bed-reader tells
            check_regular(path.with_suffix(end))
    damaged = f"{path} cannot be read with the .bim and .fam beside it"
    with damaged_as(damaged, Exception):
        bed: Any = open_bed(path)
        families, names, variants = (tuple(map(str, values)) for values in (bed.fid, bed.iid, bed.sid))
    if twice := [variant for variant, count in Counter(variants).items() if count > 1]:
        way_out = "plink2 --set-all-var-ids '@:#:$r:$a' --make-bed names them by place and alleles"
        refuse(f"{path}: ids of variants must be unique, but these repeat: {first_names(twice)}; {way_out}")

    def dosages(key: Any) -> Array:
        with damaged_as(damaged, Exception):
            return np.asarray(bed.read(key, dtype="float32", order="C"))

    shape = (len(names), len(variants))
    matrix = Lazy(shape, np.float32, dosages)
    note = f"{path}: dosages count allele A1 of the .bim; new samples are predicted from files with the same A1"
    note = f"{note}. Linear kernels standardize them (transform grm); transform none (--transform none) takes them raw"
    named: dict[str, Any] = {"genotypes": True, "rows": Individual.of(names, families), "columns": variants}
    return [FileArray(path, "dosages", shape, matrix.dtype, lambda: matrix, holds="features", notes=(note,), **named)]
