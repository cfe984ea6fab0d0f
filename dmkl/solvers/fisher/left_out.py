"""What the regressions that leave one row out need of a solution: the diagonal of A⁻¹, A = ½(I + K(β)/λ).

The leave-one-out residual of row i is α_i/(A⁻¹)_ii, up to directions that are not penalized
(`dmkl.numerics.discriminant.leave_one_out`). The direct solver has a factor of A. For the solvers that have none, one
pass adds up the combined kernels.

- For a few problems of moderate size A is factored for each: exact.
- A grid of (p, λ) on thousands of samples would need m³ operations for each of its points. The leverages
  h_i = 1 − ½(A⁻¹)_ii depend on how isolated sample i is, much more than on the weights β. So they are taken from the
  plain sum K̄ of the kernels that may have weight, at the ridge λ/Σ_jβ_j, where K̄ is on the scale of K(β): the kernels
  have been normalized to equal size. The ridges of a grid are interpolated between powers of ten, linearly in the logit
  of h against log λ. On Flower17 decisions by these rules agree with those by exact ones on 98.5 to 100 % of new rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dmkl.arrays import Float
from dmkl.solvers.driver import drive
from dmkl.solvers.fisher import direct
from dmkl.solvers.jobs import Context, Job
from dmkl.solvers.outcome import Outcome
from dmkl.solvers.requests import InverseDiagonals, Solver

__all__ = ["with_inverse_diagonals"]

_FEW, _OPERATIONS = 256, 2**34
"""Problems of a training set that are factored each by itself: so many at most, and Σ m³ at most."""
_NEARLY_ZERO = 1e-6
"""Bound of h and of 1 − h, so that rounding in single precision leaves their logit finite."""


def with_inverse_diagonals(jobs: Sequence[Job], outcomes: Sequence[Outcome], context: Context) -> list[Outcome]:
    """The outcomes with `Outcome.inverse`; as they are where combined kernels do not fit the memory budget."""
    missing = [k for k, outcome in enumerate(outcomes) if outcome.inverse is None]
    if not missing or not direct.fits(jobs):
        return list(outcomes)
    groups: dict[tuple[int, bytes], list[int]] = {}
    for k in missing:
        job = jobs[k]
        kernels = b"" if job.kernels is None else job.kernels.tobytes()
        groups.setdefault((id(job.training), kernels), []).append(k)
    exact, shared = list[int](), list[list[int]]()
    for members in groups.values():
        if len(members) <= _FEW and len(members) * jobs[members[0]].training.n_train ** 3 <= _OPERATIONS:
            exact += members
        else:
            shared.append(members)
    found = list(outcomes)
    at_once = max(1, direct.allowed_bytes() // direct.needed_bytes(jobs))
    solvers = [(jobs[k].training.square, _exact(outcomes[k].weights, jobs[k].problem.lam)) for k in exact]
    for k, diagonal in zip(exact, drive(solvers, at_once=at_once, tally=context.tally)[0], strict=True):
        found[k] = replace(outcomes[k], inverse=diagonal)
    sums = [
        (
            jobs[members[0]].training.square,
            _of_plain_sum(jobs[members[0]], [_ridge(jobs[k], outcomes[k]) for k in members]),
        )
        for members in shared
    ]
    for members, diagonals in zip(shared, drive(sums, at_once=at_once, tally=context.tally)[0], strict=True):
        for k, diagonal in zip(members, diagonals, strict=True):
            found[k] = replace(outcomes[k], inverse=diagonal)
    return found


def _exact(weights: Float, lam: float) -> Solver[Float]:
    (diagonal,) = yield InverseDiagonals(weights, (lam,), single=False)
    return np.asarray(diagonal)


def _ridge(job: Job, outcome: Outcome) -> float:
    """λ/Σ_jβ_j: (K(β) + λI) is about Σβ_j times (K̄ + ρI) at this ρ, K̄ the mean kernel."""
    return float(job.problem.lam / outcome.weights.sum())


def _of_plain_sum(job: Job, ridges: Sequence[float]) -> Solver[list[Float]]:
    """The diagonals for the mean kernel in place of K(β)/Σβ_j, of each of these ridges."""
    weights = np.zeros(job.training.n_kernels)
    weights[slice(None) if job.kernels is None else job.kernels] = 1.0 / job.n_kernels
    places = np.log10(ridges)
    nodes = np.unique(places)
    first, last = np.floor(nodes[0]), np.ceil(nodes[-1])
    if len(nodes) > last - first + 1:
        nodes = np.arange(first, last + 1)
    diagonals = yield InverseDiagonals(weights, tuple((10.0**nodes).tolist()), single=True)
    free = np.clip(0.5 * diagonals, _NEARLY_ZERO, 1.0 - _NEARLY_ZERO)
    logits = np.log(free / (1.0 - free))
    found = dict[float, Float]()
    for place in np.unique(places).tolist():
        k = min(int(np.searchsorted(nodes, place, side="right")) - 1, max(len(nodes) - 2, 0))
        share = 0.0 if len(nodes) == 1 else (place - nodes[k]) / (nodes[k + 1] - nodes[k])
        logit = logits[k] + share * (logits[min(k + 1, len(nodes) - 1)] - logits[k])
        found[place] = 2.0 / (1.0 + np.exp(-logit))
    return [found[place] for place in places.tolist()]
