"""Kernel weights from alignments, without solving a learning problem: `dmkl.aligned_weights`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import scipy.optimize
import xarray as xr

from dmkl.analysis.analyze import analyze
from dmkl.arrays import Float
from dmkl.errors import AlignmentWarning, first_names, refuse, warn
from dmkl.kernelset import Kernels
from dmkl.variables import describe

Alignment = Literal["align", "alignf", "cka", "statis"]


def aligned_weights(
    K: Kernels,
    y: npt.ArrayLike | None = None,
    *,
    method: Alignment = "alignf",
    steps: str | Sequence[Any] = ("center", "trace"),
) -> xr.DataArray:
    """Weights of kernels by their alignment with the labels, or with one another.

    With M_ij = ⟨K_i, K_j⟩ and a_j = ⟨K_j, T⟩, where T is the ideal kernel of the labels (yyᵀ of two classes; of several
    HHᵀ of their centered indicators) and all matrices are centered,

    ======== ========================================= =================================================
    align    w_j = a_j/‖K_j‖                           each kernel by its own alignment (Eq. 6)
    alignf   the minimum of wᵀMw − 2wᵀa over w ≥ 0     the largest alignment of Σ_j w_jK_j (Proposition 9)
    cka      w = M⁻¹a                                  the same without w ≥ 0 (Proposition 8)
    statis   w_j = max(v_j, 0)/‖K_j‖                   v the leading eigenvector of the unbiased alignments
    ======== ========================================= =================================================

    each scaled to ‖w‖_2 = 1.

    Parameters
    ----------
    K
        A square set; the training kernels.
    y
        Labels as in `dmkl.analyze`; those of the set where missing. "statis" needs none.
    method
        One of the above.
    steps
        Steps before the alignments, which center the kernels; weights belong to the kernels after these steps, so that
        a learner with given weights takes the same.

    Returns
    -------
    DataArray
        w, over kernel; over kernel and task for a multilabel problem. `dmkl.Weighted` takes it.

    Raises
    ------
    InputError
        If there are no labels, a kernel is constant, or two kernels are multiples of each other ("cka").

    Warns
    -----
    AlignmentWarning
        If more than half of the squared norm of a kernel is on its diagonal ("align", "alignf", "cka").

    Notes
    -----
    Cortes, Mohri, Rostamizadeh: Algorithms for learning kernels based on centered alignment. JMLR 13 (2012). Lavit,
    Escoufier, Sabatier, Traissac: The ACT (STATIS method). Computational Statistics and Data Analysis 18 (1994). It
    takes two passes over the kernels.

    Examples
    --------
    >>> import dmkl
    >>> K = dmkl.open("kernels.zarr")
    >>> train, _, _ = K.split(0)
    >>> weights = dmkl.aligned_weights(K[train, train])
    >>> bool((weights >= 0).all())
    True
    """
    if method not in get_args(Alignment):
        refuse(f"method must be one of {', '.join(map(repr, get_args(Alignment)))}, got {method!r}")
    data = analyze(K, y, steps=steps, targets=method != "statis", n_eigenvalues=1).data
    if not data.attrs["centered"]:
        refuse("alignments of kernels that are not centered compare their means; take steps that begin with 'center'")
    norm, alignment = data["norm"].values, data["alignment"].values
    if np.isnan(norm).any():
        name = str(data["kernel"].values[np.isnan(norm)][0])
        refuse(
            f"kernel {name!r} is constant once it is centered, so that it has no alignment; leave it out by select()"
        )
    if method == "statis":
        # A kernel without unbiased alignments resembles no other.
        leading = np.linalg.eigh(np.nan_to_num(data["unbiased_alignment"].values))[1][:, -1:]
        return _labeled(np.maximum(leading * np.sign(leading.sum()), 0.0) / norm[:, None], data, None)
    if "target_alignment" not in data:
        refuse(f"method={method!r} needs labels: give y, or store them with the kernels; method='statis' needs none")
    dominated = data["kernel"].values[data["diagonal_share"].values > 0.5]  # that is: more than all other entries
    if len(dominated):
        what = f"of {len(dominated)} centered kernels more than half of the squared norm is on the diagonal"
        why = "as where features outnumber samples, which makes alignments of unrelated kernels large"
        warn(f"{what} ({first_names(dominated)}), {why}; compare the weights with those of a learner", AlignmentWarning)
    targets = data["target_alignment"]
    task = None if targets.ndim == 1 else targets["task"].values
    # In units of unit norms: M is the matrix of alignments then, and its condition does not depend on the scales.
    of_units = targets.values.reshape(len(norm), -1)
    if method == "align":
        weights = of_units
    elif method == "cka":
        try:
            weights = np.linalg.solve(alignment, of_units) / norm[:, None]
        except np.linalg.LinAlgError as error:
            refuse(
                "two kernels are multiples of each other, so that 'cka' has no single solution; take 'alignf'", error
            )
    else:
        # The minimum of wᵀMw − 2wᵀa over w ≥ 0 is that of nonnegative least squares with the root of M.
        values, vectors = np.linalg.eigh(alignment)
        kept = values > 1e-12 * values[-1]
        root = np.sqrt(values[kept])[:, None] * vectors[:, kept].T
        sides = (vectors[:, kept].T @ of_units) / np.sqrt(values[kept])[:, None]
        weights = np.stack([scipy.optimize.nnls(root, side)[0] for side in sides.T], axis=1) / norm[:, None]
    return _labeled(weights, data, task)


def _labeled(weights: Float, data: xr.Dataset, task: Any) -> xr.DataArray:
    sizes = np.linalg.norm(weights, axis=0)
    scaled = weights / np.where(sizes > 0, sizes, 1.0)
    coords = {"kernel": data["kernel"].values}
    if task is None:
        return describe(xr.DataArray(scaled[:, 0], coords, ("kernel",), name="weight"))
    return describe(xr.DataArray(scaled, coords | {"task": task}, ("kernel", "task"), name="weight"))
