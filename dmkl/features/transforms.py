"""Transforms of tables, whose numbers are learned from the training samples and kept with the kernels.

Of any numbers, some of which are missing (NaN):

    impute         x_ik, or if it is missing the mean of column k over the training samples that have it

Of counts x ≥ 0:

    size-factor    x_ik t/t_i,  t_i = Σ_k x_ik over all columns of the table, t the median of the t_i > 0 of training
    log1p          log(1 + x_ik)
    tfidf          x_ik log(1 + (1 + n)/(1 + n_k)),  n training samples, x_ik > 0 in n_k of them

They are scanpy's `normalize_total` and `log1p`, and scMKL's `tfidf_normalize`, which takes counts as term frequencies.
A row of zeros stays. Of genotypes, dosages x of 0 to 2, with the frequency p_k of the counted allele and N columns of
the table with 0 < p_k < 1 in training (the others become 0):

    grm             (x_ik − 2p_k)/√(2Np_k(1 − p_k))
    grm=vanraden    (x_ik − 2p_k)/√(2Σ_k p_k(1 − p_k))

Their linear kernels are the relationship matrices of GCTA (Yang, Lee, Goddard, Visscher, American Journal of Human
Genetics 88, 2011, Eq. 3) and VanRaden (Journal of Dairy Science 91, 2008, method 1), and those of parts of the columns,
such as chromosomes, add up to these. p_k is a frequency among the known genotypes of training, and a missing genotype
becomes 0, as 2p_k does; GCTA divides by the number of variants that both samples of a pair have, and here N is the same
for all. Tables of genotypes (`FeatureMatrix.genotypes`) with another transform, or none, are imputed first.

New samples are transformed with the numbers of training: t is in the recipe, and the means of impute and the factors of
tfidf are a table of one row, 2p and the factors of grm one of two. The recipe also has the `Scale` of the table
before the first step, with which tables of new samples are compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Self

import numpy as np

from dmkl.arrays import Array, Float, Index, Lazy
from dmkl.errors import FeatureWarning, StoreError, first_names, refuse, warn
from dmkl.features.recipes import GENETIC, IMPUTING, Recipe
from dmkl.inputs.features import FeatureMatrix
from dmkl.names import Names
from dmkl.store.features import FeatureTable, check_rows, strips, table_in_memory

Learned = float | Float | None  # t, numbers of the columns (1 or 2, columns), or nothing

_SCALE_ROWS = 500  # rows whose values give a scale
_SCALE_VALUES = 100  # non-zero values below which scales are not compared, since their figures vary by chance


@dataclass(frozen=True)
class Scale:
    """Figures of the first rows of a table that show whether it holds counts, logarithms or standardized values."""

    values: int  # number of values that are not 0
    whole: float  # share of these that are whole numbers
    negative: float  # share of these that are negative
    size: float  # median over the rows of the mean of |x|

    @classmethod
    def of(cls, table: FeatureMatrix | FeatureTable, rows: Index, columns: Index | None = None) -> Self:
        """The scale of the first of some rows (increasing) that have the table."""
        parts, n = [np.zeros((0, table.shape[1] if columns is None else len(columns)), table.dtype)], 0
        for strip in strips(table):
            values = table.read(strip)[rows[(rows >= strip.start) & (rows < strip.stop)] - strip.start]
            values = (values if columns is None else values[:, columns])[: _SCALE_ROWS - n]
            parts.append(values[np.isfinite(values).any(axis=1)])
            n += len(parts[-1])
            if n >= _SCALE_ROWS:
                break
        values = np.concatenate(parts)
        present = np.isfinite(values)
        nonzero = values[present & (values != 0)]
        if not len(nonzero):
            return cls(0, 0.0, 0.0, 0.0)
        size = float(np.median(np.abs(values).mean(axis=1, dtype=np.float64, where=present)))
        return cls(len(nonzero), float((nonzero == np.rint(nonzero)).mean()), float((nonzero < 0).mean()), size)

    def differences(self, new: Scale, of_dosages: bool, same_columns: bool) -> list[str]:
        """The figures in which new values differ plainly from these, of training.

        These are shares of whole numbers (not of dosages, which may be imputed) or of negative values on either side of
        10 % and 90 %, or 0 and 10 %, and a size that differs by a factor of 10 or more.
        """
        if min(self.values, new.values) < _SCALE_VALUES:
            return []
        whole, negative, size = ((getattr(self, key), getattr(new, key)) for key in ("whole", "negative", "size"))
        texts = []
        if not of_dosages and min(whole) <= 0.1 and max(whole) >= 0.9:
            texts.append(f"{whole[1]:.0%} of their non-zero values are whole numbers ({whole[0]:.0%} in training)")
        if min(negative) == 0 and max(negative) >= 0.1:
            texts.append(f"{negative[1]:.0%} are negative ({negative[0]:.0%} in training)")
        if same_columns and min(size) > 0 and max(size) >= 10 * min(size):
            texts.append(f"the median of the samples' mean |x| is {size[1]:.3g} ({size[0]:.3g} in training)")
        return texts


@dataclass(frozen=True)
class Transform:
    """Steps in their order, each with what it learned."""

    steps: tuple[tuple[str, Learned], ...] = ()

    @classmethod
    def of(cls, recipe: Recipe, tables: Mapping[str, FeatureTable]) -> Self:
        """The transform of the features of a kernel; StoreError if what it learned is missing."""
        steps: list[tuple[str, Learned]] = []
        for made in recipe.made.get("transform", {}).get("steps", ()):
            factors = made.get("factors")
            if factors is not None and factors not in tables:
                msg = f"{factors!r}, which transform {recipe.source!r}, are missing; build kernel {recipe.name!r} again"
                raise StoreError(msg)
            steps.append((made["step"], made.get("target") if factors is None else tables[factors].read(slice(None))))
        return cls(tuple(steps))

    def __call__(self, values: Array, name: str, first: int, samples: Sequence[str] | None, columns: Names) -> Array:
        """Transform the rows from `first` on, in place.

        InputError if a value is negative (unless it is only imputed), no dosage, or missing where none is imputed.
        """
        steps = [step for step, _ in self.steps]
        if steps and steps[0] in IMPUTING:
            absent = np.asarray(np.isnan(values).all(axis=1))
        else:
            absent = check_rows(name, values, first, samples, columns)
        if steps != ["impute"] and (values < 0).any():
            i, k = map(int, np.argwhere(values < 0)[0])
            sample, column = first + i if samples is None else samples[first + i], k if columns is None else columns[k]
            refuse(
                f"transform is for counts, with no negative values, but {name!r} has {values[i, k]:g} at sample "
                f"{sample!r}, column {column!r}; name a table of counts (feature=, --feature), or leave transform out"
            )
        if steps and steps[0] in GENETIC:
            _refuse_more_than_two(values, name)
        for step, learned in self.steps:
            if learned is None:
                np.log1p(values, out=values)
            elif step == "size-factor":
                totals = values.sum(axis=1, keepdims=True, dtype=np.float64)
                values *= learned / np.where(totals > 0, totals, 1)
            elif step in IMPUTING and isinstance(learned, np.ndarray):
                lacking = np.isnan(values) & ~absent[:, None]
                if step in GENETIC:
                    values -= learned[0]
                    values *= learned[1]
                np.copyto(values, learned if step == "impute" else 0, where=lacking)
            else:
                values *= learned
        return values

    def read(self, matrix: FeatureMatrix, samples: Sequence[str] | None, key: tuple[slice, ...]) -> Array:
        """Read the rows ``key[0]``, and transform them."""
        values = np.array(matrix.read(key[0]))
        return self(values, matrix.name, key[0].start or 0, samples, matrix.columns)

    def learn(self, step: str, matrix: FeatureMatrix, samples: Sequence[str] | None, train: Index) -> Learned:
        """Learn the next step from the training rows, transformed by the steps before it."""
        if step == "log1p":
            return None
        totals, counts, sums = [np.zeros(0)], np.zeros(matrix.shape[1]), np.zeros(matrix.shape[1])
        for strip in strips(matrix):
            at = train[(train >= strip.start) & (train < strip.stop)] - strip.start
            imputes_first = step in IMPUTING and not self.steps
            values = (matrix.read(strip) if imputes_first else self.read(matrix, samples, (strip,)))[at]
            values = values[~np.isnan(values).all(axis=1)]  # the others lack the table
            if step in GENETIC:
                _refuse_more_than_two(values, matrix.name)
            totals.append(values.sum(axis=1, dtype=np.float64))
            counts += np.isfinite(values).sum(axis=0)
            sums += np.nansum(values > 0 if step == "tfidf" else values, axis=0, dtype=np.float64)
        if step == "impute":
            if len(lacking := np.flatnonzero(counts == 0)):
                names = [k if matrix.columns is None else matrix.columns[k] for k in lacking]
                refuse(
                    f"{matrix.name!r} has no value in {len(lacking):,} of its {matrix.shape[1]:,} columns in the "
                    f"training samples: {first_names(names)}; leave these out (genotypes: plink2 --exclude, or "
                    "transform grm)"
                )
            return np.asarray((sums / counts)[None])
        if step in GENETIC:
            twice = sums / np.maximum(counts, 1)  # 2p
            variances = np.maximum(twice * (1.0 - 0.5 * twice), 0.0)
            if not variances.any():
                refuse(f"{step} needs a variant that varies, and none of {matrix.name!r} does in the training samples")
            varies = variances > 0
            scale = variances.sum() if step == "grm=vanraden" else variances[varies] * varies.sum()
            variances[varies] = 1.0 / np.sqrt(scale)
            return np.stack([twice, variances])
        if step == "tfidf":
            return np.log1p((1 + counts) / (1 + sums))[None]
        total = np.concatenate(totals)
        if not total.any():
            refuse(f"size-factor needs a total > 0, and {matrix.name!r} is 0 in all training samples; leave it out")
        return float(np.median(total[total > 0]))


def _refuse_more_than_two(values: Array, name: str) -> None:
    if (values > 2).any():
        refuse(f"grm is for dosages from 0 to 2, but {name!r} has {np.nanmax(values):g}; leave transform out")


def _warn_of_no_counts(
    matrix: FeatureMatrix, scale: Scale, steps: Sequence[str], tables: Mapping[str, FeatureMatrix]
) -> None:
    """Warn of a table whose values are mostly no whole numbers, and name tables of the same columns that are counts."""
    names = set(matrix.columns or ())
    of_counts = [
        name
        for name, other in tables.items()
        if not names.isdisjoint(other.columns or ()) and Scale.of(other, np.arange(other.shape[0])).whole >= 0.9
    ]
    way_out = f"take the counts in {first_names(map(repr, of_counts))}" if of_counts else "name a table of counts"
    rule, what = f"transform {','.join(steps)} is for counts", f"of the non-zero values of {matrix.name!r}"
    text = f"{rule}, but {1 - scale.whole:.0%} {what} are not whole numbers: they may be logarithms already"
    warn(f"{text}; {way_out} (feature=, --feature), or leave transform out", FeatureWarning)


def warn_of_scale(recipe: Recipe, table: FeatureTable, new: FeatureMatrix, present: Index, at: Index) -> None:
    """Warn if new features, whose columns `at` are those `present` in training, are plainly on another scale.

    Transformed features are compared before the transform. Recipes of these and of kernels of low rank, which have no
    table of the training samples, have its scale; older ones lack it.
    """
    transform = recipe.made.get("transform")
    scale = (transform or recipe.made).get("scale")
    if scale is None and (transform is not None or table.shape[0] == 1):
        return
    key = present.tobytes()
    if scale is None and key not in table.computed:
        table.computed[key] = Scale.of(table, np.arange(table.shape[0]), present)
    training: Scale = table.computed[key] if scale is None else Scale(**scale)
    of_dosages = new.genotypes or (transform is not None and transform["steps"][0]["step"] in GENETIC)
    same_columns = scale is None or len(present) == table.shape[1]
    differing = training.differences(Scale.of(new, np.arange(new.shape[0]), at), of_dosages, same_columns)
    if differing:
        what = f"features {new.name!r} are probably on another scale than in training: {'; '.join(differing)}"
        warn(f"{what}. Give them as those of training, such as counts or logarithms in both", FeatureWarning)


def transform_tables(
    planned: Sequence[Recipe], tables: Mapping[str, FeatureMatrix], samples: Sequence[str] | None, train: Index
) -> tuple[list[Recipe], dict[str, FeatureMatrix], list[FeatureTable]]:
    """Learn the transforms that recipes ask for, from the training samples at the positions `train`.

    Returns recipes of transformed tables, such as ``X: size-factor,log1p``, these tables with the given ones, and the
    tables of factors. A transformed table is read from the given one, some rows at a time.
    """
    recipes, results, learned = list(planned), dict(tables), list[FeatureTable]()
    made: dict[str, dict[str, Any]] = {}
    for k, recipe in enumerate(planned):
        steps = [step["step"] for step in recipe.made.get("transform", {}).get("steps", ())]
        name = f"{recipe.source}: {','.join(steps)}"
        if steps and name not in made:
            matrix = tables[str(recipe.source)]
            scale = Scale.of(matrix, np.sort(train))
            if steps[0] not in GENETIC and scale.values and scale.whole < 0.5:
                _warn_of_no_counts(matrix, scale, steps, tables)
            transform, records = Transform(), [dict[str, Any](step=step) for step in steps]
            for record in records:
                value = transform.learn(record["step"], matrix, samples, train)
                if isinstance(value, np.ndarray):
                    record["factors"] = f"{name}: factors {len(transform.steps)}"
                    learned.append(table_in_memory(record["factors"], value))
                elif value is not None:
                    record["target"] = value
                transform = Transform((*transform.steps, (record["step"], value)))
            training = {} if set(steps) == {"log1p"} else {"training_rows": len(train)}
            made[name] = {"transform": {"of": matrix.name, "steps": records, "scale": asdict(scale)}, **training}
            opened = partial(Lazy, matrix.shape, matrix.dtype, partial(transform.read, matrix, samples))
            results[name] = FeatureMatrix(name, matrix.shape, matrix.dtype, matrix.columns, None, opened)
        recipes[k] = replace(recipe, feature=name, made=made[name]) if steps else recipe
    return recipes, results, learned
