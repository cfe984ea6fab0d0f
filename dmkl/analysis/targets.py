"""Ideal kernels made from labels, and how well kernels align with them.

Two classes: T = yyᵀ with y = ±1 (Cristianini, Shawe-Taylor, Elisseeff, Kandola, On kernel-target alignment, NIPS 2001).
More classes: T_ab = 1 where samples a and b are of one class, 0 elsewhere. Several labels: one of two classes for each.
Either is FFᵀ with one column, or one for each class, so that neither it nor its products are ever formed:

    ⟨K, T⟩ = tr FᵀKF        ‖T‖ = ‖FᵀF‖        A(K, T) = ⟨K, T⟩/(‖K‖‖T‖)

Centered, F is CF, which makes of both conventions for two classes the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dmkl.arrays import Array, Float
from dmkl.numerics.fisher import encode_targets

__all__ = ["Ideal", "ideal_kernels", "shares_between_classes", "target_alignments"]


@dataclass(frozen=True)
class Ideal:
    """The factors of one ideal kernel or, of a multilabel problem, of one for each task."""

    factors: tuple[Float, ...]  # F of each, (m, columns)
    tasks: tuple[str, ...] | None  # names of the tasks; None where there is one problem

    @property
    def columns(self) -> Float:
        """All factors side by side, (m, columns)."""
        return np.concatenate(self.factors, axis=1)


def ideal_kernels(y: npt.ArrayLike, n_samples: int, tasks: Array | None, *, centered: bool) -> Ideal:
    """The ideal kernels of labels, (m,) classes or (m, tasks) of 0 and 1; raises as `encode_targets`.

    The names of tasks are numbers where missing; `centered` says that they are compared with centered kernels.
    """
    targets = encode_targets(y, n_samples, tasks)
    factors = []
    for h in targets.problems:
        if h.shape[1] == 1:
            factor = np.sign(h)
        else:
            factor = (h > 0).astype(np.float64)  # √(m/m_k) − √(m_k/m) is positive in the sample's own class alone
        factors.append(factor - factor.mean(axis=0) if centered else factor)
    if targets.kind != "multilabel":
        return Ideal(tuple(factors), None)
    names = range(len(factors)) if tasks is None else tasks
    return Ideal(tuple(factors), tuple(str(name) for name in names))


def shares_between_classes(forms: Float, trace: Float, ideal: Ideal) -> Float:
    """The share of tr K_j between the classes, (n, tasks): tr PK_jP/tr K_j with P the projector on their indicators.

    It is 1 where a positive semidefinite centered kernel depends on the classes alone. Arguments as in
    `target_alignments`; of several classes the columns of F are centered indicators, whose products with a centered
    kernel are those of the indicators, which are orthogonal.
    """
    shares, start = [], 0
    for factor in ideal.factors:
        stop = start + factor.shape[1]
        sizes = (factor > 0).sum(axis=0) if factor.shape[1] > 1 else (factor**2).sum(axis=0)
        shares.append((forms[:, start:stop] / sizes).sum(axis=1) / trace)
        start = stop
    return np.stack(shares, axis=1)


def target_alignments(forms: Float, norm: Float, ideal: Ideal) -> Float:
    """A(K_j, T_t), (n, tasks), from fᵀK_jf for each of `ideal.columns` and ‖K_j‖ (NaN: without a direction)."""
    starts = np.cumsum([0, *(factor.shape[1] for factor in ideal.factors[:-1])])
    products = np.add.reduceat(forms, starts, axis=1)
    sizes = np.array([np.linalg.norm(factor.T @ factor) for factor in ideal.factors])
    return np.asarray(np.clip(products / sizes / norm[:, None], -1.0, 1.0))
