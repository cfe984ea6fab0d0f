"""The diagonal of A⁻¹, A = ½(I + K(β)/λ), from which leave-one-out scores follow.

The leave-one-out residual of row i is α_i/(A⁻¹)_ii, apart from directions that are not penalized
(`dmkl.numerics.discriminant.leave_one_out`). The direct solver has a factor of A. For the other solvers one pass adds
up the combined kernels.

- For a few problems of moderate size A is factored for each, and the diagonal is exact.
- A grid of (p, λ) on thousands of samples would need m³ operations for each of its points. The leverages
  h_i = 1 − ½(A⁻¹)_ii depend much more on how isolated sample i is than on the weights β. So they are computed for the
  plain sum K̄ of the kernels, at the ridge λ/Σ_jβ_j, at which K̄ has the scale of K(β), since the kernels are normalized
  to equal size. The ridges of a grid are interpolated between powers of ten, linearly in the logit of h over log λ.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from dmkl.arrays import Array, Float
from dmkl.files.arrays import load_arrays, save_arrays
from dmkl.numerics.discriminant import null_leverages
from dmkl.passes.view import Lens
from dmkl.solvers.driver import drive
from dmkl.solvers.fisher import direct
from dmkl.solvers.jobs import Context, Job
from dmkl.solvers.outcome import Outcome
from dmkl.solvers.requests import InverseDiagonals, Solver

__all__ = ["with_inverse_diagonals"]

_FEW, _OPERATIONS = 256, 2**34
"""Limits within which A is factored for each problem of a training set: the number of problems, and Σ m³."""
_POWERS = np.array([-8.0, -5.5, -3.0, -1.0, 0.0, 1.0, 2.0])
"""Logarithms of the ridges of the interpolation, in units of the trace of the mean kernel. Single precision resolves no
smaller ridge. Ridges of the trace and above need no factor."""
_NEARLY_ZERO = 1e-7
"""Lower bound of h and 1 − h, so that their logit stays finite in spite of rounding in single precision."""


class _Sum(NamedTuple):
    """A sum of kernels, and the problems whose diagonals are computed from it."""

    lens: Lens
    request: InverseDiagonals
    members: list[int]
    ridges: list[float]
    """λ of each problem, in units of the sum."""


def with_inverse_diagonals(jobs: Sequence[Job], outcomes: Sequence[Outcome], context: Context) -> list[Outcome]:
    """Add `Outcome.inverse` to outcomes; they stay as they are if combined kernels do not fit the memory budget.

    The diagonals are stored in the checkpoint, so that a continued run needs no pass for them.
    """
    missing = [k for k, outcome in enumerate(outcomes) if outcome.inverse is None]
    if not missing or not direct.fits(jobs):
        return list(outcomes)
    sums = _sums(jobs, outcomes, missing)
    numbers = {key: str(number) for number, key in enumerate(dict.fromkeys(id(job.training.square) for job in jobs))}
    keys = [_key(numbers[id(total.lens)], total.request) for total in sums]
    file = context.workspace.path / "inverse-diagonals.npz"
    diagonals = {} if context.workspace.temporary or not file.exists() else dict(load_arrays(file))
    pairs = list(zip(keys, sums, strict=True))
    new = {key: (total.lens, _ask(total.request)) for key, total in pairs if key not in diagonals}
    at_once = max(1, direct.allowed_bytes() // direct.needed_bytes(jobs))
    before = float(diagonals.pop("n_passes", 0.0))
    context.tally.n_passes += before
    answers, n_passes = drive(list(new.values()), at_once=at_once, tally=context.tally)
    diagonals = {**diagonals, **dict(zip(new, answers, strict=True))}
    if new and not context.workspace.temporary:
        save_arrays(file, {**diagonals, "n_passes": np.array(before + n_passes)})
    complete = list(outcomes)
    projected = {id(total.lens): _projected(total.lens) for total in sums}
    for key, total in pairs:
        for k, diagonal in zip(total.members, _at_ridges(total, diagonals[key]), strict=True):
            complete[k] = replace(outcomes[k], inverse=diagonal + projected[id(total.lens)])
    return complete


def _projected(lens: Lens) -> Float | float:
    """The diagonal of 2P, which is not part of the answers."""
    null_vectors = lens.fitted.null_vectors(lens.view.shape[1])
    return 0.0 if null_vectors is None else 2.0 * null_leverages(null_vectors)


def _sums(jobs: Sequence[Job], outcomes: Sequence[Outcome], missing: Sequence[int]) -> list[_Sum]:
    """K(β) of each problem for training sets with few problems; the mean kernel for the others."""
    groups: dict[tuple[int, bytes], list[int]] = {}
    for k in missing:
        job = jobs[k]
        kernels = b"" if job.kernels is None else job.kernels.tobytes()
        groups.setdefault((id(job.training), kernels), []).append(k)
    sums = []
    for members in groups.values():
        job, lens = jobs[members[0]], jobs[members[0]].training.square
        if len(members) <= _FEW and len(members) * job.training.n_train**3 <= _OPERATIONS:
            for k in members:
                lam = float(jobs[k].problem.lam)
                sums.append(_Sum(lens, InverseDiagonals(outcomes[k].weights, (lam,), single=False), [k], [lam]))
        else:
            weights = np.zeros(job.training.n_kernels)
            weights[slice(None) if job.kernels is None else job.kernels] = 1.0 / job.n_kernels
            # K(β) + λI is about Σβ_j times K̄ + ρI at this ρ, K̄ being the mean kernel.
            ridges = [float(jobs[k].problem.lam / outcomes[k].weights.sum()) for k in members]
            nodes = tuple((10.0 ** _nodes(job, ridges)).tolist())
            sums.append(_Sum(lens, InverseDiagonals(weights, nodes, single=True), members, ridges))
    return sums


def _key(training: str, request: InverseDiagonals) -> str:
    """The name of a sum on a training set in the checkpoint."""
    content = training.encode() + request.weights.tobytes() + np.array(request.lams).tobytes()
    return hashlib.sha256(content).hexdigest()[:32]


def _ask(request: InverseDiagonals) -> Solver[Array]:
    diagonals: Array = yield request
    return diagonals


def _nodes(job: Job, ridges: Sequence[float]) -> Float:
    """Logarithms of the ridges, or of a few powers of ten around them if these are fewer."""
    places, diagonal = np.unique(np.log10(ridges)), job.training.square.diagonal()
    powers = _POWERS + (0.0 if diagonal is None else np.log10(diagonal.sum(axis=1).mean()))
    first = max(0, int(np.searchsorted(powers, places[0], side="right")) - 1)
    powers = powers[first : int(np.searchsorted(powers, places[-1])) + 1]
    return np.asarray(powers if 2 <= len(powers) < len(places) else places)


def _at_ridges(total: _Sum, diagonals: Array) -> list[Float]:
    """Interpolate the diagonals of a request, (λ, m), at the ridge of each problem."""
    if len(total.request.lams) == 1:
        return [diagonals[0]] * len(total.members)
    nodes = np.log10(total.request.lams)
    free = np.clip(0.5 * diagonals, _NEARLY_ZERO, 1.0 - _NEARLY_ZERO)
    logits = np.log(free / (1.0 - free))
    by_ridge = dict[float, Float]()  # thousands of points of a grid share a ridge
    for ridge in total.ridges:
        if ridge not in by_ridge:
            k = int(np.clip(np.searchsorted(nodes, np.log10(ridge), side="right") - 1, 0, len(nodes) - 2))
            share = (np.log10(ridge) - nodes[k]) / (nodes[k + 1] - nodes[k])
            by_ridge[ridge] = 2.0 / (1.0 + np.exp(-logits[k] - share * (logits[k + 1] - logits[k])))
    return [by_ridge[ridge] for ridge in total.ridges]
