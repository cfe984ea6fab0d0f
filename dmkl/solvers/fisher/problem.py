"""Problems of MK-FDA and the options of their solvers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dmkl.arrays import Float
from dmkl.solvers.fisher.newton import Master
from dmkl.solvers.weight_sets.base import WeightSet

__all__ = ["Finish", "FisherOptions", "FisherProblem"]

Finish = Literal["auto", "direct", "cg", "report"]


@dataclass(frozen=True, eq=False)
class FisherProblem:
    """One problem: minimize S(α, β) over α, maximize it over a set of weights β (see `dmkl.numerics.fisher`).

    Parameters
    ----------
    h
        Targets H, (m, c).
    lam
        Ridge λ.
    weights
        The weights that may be.
    name
        What it is called in messages.
    start
        β of the set to begin with, (n,); weights that are alike where None.
    """

    h: Float
    lam: float
    weights: WeightSet
    name: str = ""
    start: Float | None = None


@dataclass(frozen=True)
class FisherOptions:
    """How to solve: each solver takes what concerns it.

    Parameters
    ----------
    tol
        The relative gap to prove.
    max_iter
        Most weightings tried, or passes.
    master
        How the wrapper method finds the weights.
    finish
        How to go on with problems that the subspace leaves open: "direct" or "cg", each by the wrapper method, "auto"
        the first of these that fits; "report" leaves them with their true gap.
    basis_bytes
        Most bytes that the bases of the subspace solver and their products may take on disk; half of what is free
        where None.
    mu
        μ of the Tikhonov form; None for ‖β‖_p ≤ 1.
    leave_one_out
        Whether leave-one-out scores are wanted, which follow from `Outcome.inverse` and the dual variables.
    """

    tol: float = 1e-4
    max_iter: int = 200
    master: Master = "newton"
    finish: Finish = "auto"
    basis_bytes: int | None = None
    mu: float | None = None
    leave_one_out: bool = False
