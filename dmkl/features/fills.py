"""What stands in kernels for samples that lack a source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from dmkl.errors import InputError
from dmkl.features.tiles import FeatureTiles, Fill
from dmkl.numerics.chain import Fitted
from dmkl.passes.run import run_pass
from dmkl.passes.sweep import Columns
from dmkl.passes.view import Lens, View

__all__ = ["fill_of", "filled", "means"]

Float = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def filled(source: FeatureTiles, absent: Mapping[str, Mask], present: Mapping[str, Index]) -> FeatureTiles:
    """The same kernels with samples that lack a source at the mean of those that have it.

    Parameters
    ----------
    source
        Symmetric kernels, zeros in the place of features that are absent.
    absent
        For each source the samples that lack it, (samples,).
    present
        For each source the training samples that have it, as positions.

    Returns
    -------
    FeatureTiles
        The source itself where nothing is absent.

    Raises
    ------
    InputError
        If no training sample has a source.
    """
    affected = [k for k, recipe in enumerate(source.recipes) if recipe.feature and absent[recipe.feature].any()]
    fills = {}
    for k, mean in means(source, affected, present).items():
        feature = str(source.recipes[k].feature)
        mask = absent[feature]
        fills[k] = fill_of(mask, mask, mean, mean, float(mean[present[feature]].mean()))
    return (
        source
        if not fills
        else FeatureTiles(source.recipes, source.axes[0], None, source.dtype, source.tiling.tile, fills)
    )


def means(source: FeatureTiles, kernels: Sequence[int], present: Mapping[str, Index]) -> dict[int, Float]:
    """Mean of k(x, ·) over the column samples that have the source, for every row sample x: a pass for each source.

    Parameters
    ----------
    source
        Kernels, zeros in the place of features that are absent.
    kernels
        Which of them.
    present
        For each source the column samples that have it, as positions.

    Returns
    -------
    dict
        (rows,) for each kernel.

    Raises
    ------
    InputError
        If no sample has a source.
    """
    found: dict[int, Float] = {}
    for feature in dict.fromkeys(str(source.recipes[k].feature) for k in kernels):
        mine = np.array([k for k in kernels if source.recipes[k].feature == feature])
        rows, cols = np.arange(source.tiling.rows), np.arange(source.tiling.cols)
        if not len(present[feature]):
            msg = f"no training sample has {feature!r}, so nothing stands for it; leave its kernels out"
            raise InputError(msg)
        vector = np.zeros(len(cols))
        vector[present[feature]] = 1.0 / len(present[feature])
        view = View(source, mine, rows, rows if source.symmetric else cols)
        column = Columns(vector[:, None], "each", None, np.dtype(np.float64))
        (products,), _ = run_pass([Lens(view, Fitted())], [column], "means")
        found |= dict(zip(mine.tolist(), products[:, :, 0], strict=True))
    return found


def fill_of(rows: Mask, cols: Mask, row_mean: Float, col_mean: Float, mean: float) -> Fill:
    """A fill in which samples that lack the source have the mean of the means themselves."""
    return Fill(rows, cols, np.where(rows, mean, row_mean), np.where(cols, mean, col_mean), mean)
