"""The dimensions of kernels in which the labels are: `dmkl.relevant_dimension`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt
import xarray as xr

from dmkl.analysis.analyze import RELEVANT, analyze
from dmkl.errors import refuse
from dmkl.stores import Kernels, as_kernel_set


def relevant_dimension(
    K: Kernels,
    y: npt.ArrayLike | None = None,
    *,
    steps: str | Sequence[Any] = ("center",),
    n_vectors: int = 200,
    seed: int = 0,
) -> xr.Dataset:
    """The number of leading eigenvectors of each kernel in which the labels are, and the noise in the others.

    With z_i = Σ_c (u_iᵀf_c)², eigenvectors u_i of a centered kernel and centered indicators f_c of the classes, it is
    the cut d ≤ m/2 with the least

        d/m · log σ₁² + (m − d)/m · log σ₂²,   σ₁² and σ₂² the means of z_1 … z_d and z_{d+1} … z_m,

    among those with σ₁² > σ₂²; 0 if there are none. InputError without labels, or steps that center.

    Parameters
    ----------
    K, y, steps
        As in `dmkl.analyze`.
    n_vectors, seed
        Number of random vectors for the eigenvectors, and their seed. The result is exact from as many as samples;
        with fewer d is too small and the noise too large, the more so the flatter the spectrum.

    Returns
    -------
    Dataset
        Over kernel (and task): `relevant_dimension` d; `relevant_dimension_most`, d, or NaN where it is the largest
        that the vectors show; `label_noise`, σ₂²m/Σz, the share of noise in the labels; `label_explained`, the share of
        z_1 … z_d in Σz. `dmkl.analyze` has the same from fewer vectors.

    Notes
    -----
    Braun, Buhmann, Müller, On relevant dimensions in kernel feature spaces. JMLR 9 (2008). One pass.

    Examples
    --------
    >>> import dmkl
    >>> noise = dmkl.relevant_dimension(dmkl.open("kernels.zarr")).label_noise
    """
    K = as_kernel_set(K, "relevant_dimension")
    data = analyze(K, y, steps=steps, probes=max(3, min(n_vectors, K.shape[1])), n_eigenvalues=1, seed=seed).data
    if "label_noise" not in data:
        refuse("relevant dimensions need labels and centered kernels: give y, and steps with 'center'")
    return data[list(RELEVANT)]
