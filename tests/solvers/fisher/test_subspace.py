"""The subspace solver: its parts, its certificates against dense formulas, what it survives."""

from __future__ import annotations

import itertools
import json
from types import SimpleNamespace
from typing import NamedTuple

import dask
import numpy as np
import pytest
from helpers.faults import revived_workers
from helpers.generators import driven
from helpers.optima import bounds, norm, optimum, solve, system, value
from helpers.references import Counting, Killing, dense_view, digits, error, in_memory, over, psd
from hypothesis import given
from hypothesis import strategies as st

import dmkl
from dmkl import progress
from dmkl.errors import ConvergenceWarning, IndefiniteKernelError, InputError, MemoryBudgetError, StoreError
from dmkl.files.arrays import save_array
from dmkl.numerics.fisher import encode_targets, onto_sphere, uniform_weights
from dmkl.passes.statistics import measure
from dmkl.solvers.fisher.mkfda import MemoryOracle, solve_restricted
from dmkl.solvers.fisher.problem import FisherOptions, FisherProblem
from dmkl.solvers.fisher.subspace import solver as engine
from dmkl.solvers.fisher.subspace.directions import dominant_block, orthonormal_to
from dmkl.solvers.fisher.subspace.preconditioners import choose_reference_weights, closeness, grid_step, ridge
from dmkl.solvers.fisher.subspace.solver import SubspaceSolver, finish_open, points_of
from dmkl.solvers.fisher.subspace.space import SubspaceOptions, add_preconditioners
from dmkl.solvers.jobs import Context, Job, Training
from dmkl.solvers.outcome import Status
from dmkl.solvers.weight_sets.balls import Ball
from dmkl.solvers.workspace import Workspace

EXPONENTS = [1.0, 1 + 2**-6, 1.5, 2.0, np.inf]
LAMBDAS = [1e-6, 1e-4, 1e-2, 1.0, 10.0]
STEPS = ("center", "trace")
NAMES = ("smooth", "sharp", "upper", "lower", "noise")
TOL = 1e-4

pytestmark = pytest.mark.usefixtures("synchronous")


# --- data ---------------------------------------------------------------------------------------------------


LABELS = {
    "binary": lambda y: (y < 5).astype(int),
    "multiclass": lambda y: y % 4,
    "tasks": lambda y: np.stack([y < 5, y % 3 == 0], axis=1).astype(int),
}
ORDER = np.random.default_rng(1).permutation(90)
FOLDS = [(ORDER[:60], ORDER[60:]), (ORDER[35:], ORDER[:20])]
"""Training rows and rows held out, of different numbers."""


class Problem(NamedTuple):
    """What the engine is given, and the same densely."""

    jobs: list
    points: list
    targets: list
    dense: list
    held_out: list

    @classmethod
    def of(cls, kind, ps=EXPONENTS, lams=LAMBDAS, K=None, folds=FOLDS, steps=STEPS, dtype=np.float64):
        kernels, y = digits()
        kernels = kernels.astype(dtype)
        K = in_memory(kernels, 25) if K is None else K
        views = []
        for train, others in folds:
            view = K[np.concatenate([train, others]), train]
            for step in steps:
                view = view.center() if step == "center" else view.normalize(step)
            views.append(view.view)
        lenses, _ = measure(views)
        trainings = [Training(lens.training(), lens, NAMES, f"fold {f}: ") for f, lens in enumerate(lenses)]
        targets = [encode_targets(LABELS[kind](y)[train], len(train)).problems for train, _ in folds]
        jobs = [
            Job(training, FisherProblem(h, lam, Ball(p), training.title))
            for training, problems in zip(trainings, targets, strict=True)
            for h in problems
            for p in ps
            for lam in lams
        ]
        dense = [dense_view(kernels, train, train, steps) for train, _ in folds]
        held_out = [dense_view(kernels, o, t, steps) for t, o in folds]
        return cls(jobs, points_of(jobs)[1], targets, dense, held_out)

    def solver(self, folder=None, identity=None, **options):
        options = {"alphas": True, **options}
        workspace = Workspace(folder, identity or {})
        return SubspaceSolver(*points_of(self.jobs), workspace, SubspaceOptions(**options))

    def run(self, folder=None, finish="auto", **options):
        """The solver after its run, with the outcomes as `results` and the passes of finishing as `rounds`."""
        solver = self.solver(folder, **options)
        context = Context(solver.workspace)
        try:
            outcomes = driven(solver)
            how = FisherOptions(solver.options.tol, finish=finish)
            solver.results = finish_open(self.jobs, outcomes, how, context)
        finally:
            solver.workspace.close()
        solver.rounds = [*solver.history, *context.tally.rounds]
        return solver

    def parts(self, k):
        """The kernels and targets of a point."""
        point = self.points[k]
        return self.dense[point.space], self.targets[point.space][point.target], point.lam, point.weights.p


def check_claims(problem, solver, rounding=1e-9):
    """What is reported of every point is true of its weights: [S − gap·|S| + (F − S), F] encloses the optimum.

    J(β) ≤ max J ≤ F(α) for every α and β, and both come from dense formulas here. `rounding` is how far S and F may be
    off, relative to S, where their products are in single precision; the gap counts it.
    """
    for k, result in enumerate(solver.results):
        kernels, h, lam, p = problem.parts(k)
        assert (result.weights >= 0).all()
        assert norm(result.weights, p) <= 1 + 1e-12
        _, lower = solve(kernels, result.weights, h, lam)
        size = abs(result.objective)
        assert (result.bound - lower) / size <= result.gap + rounding
        assert result.bound >= lower - rounding * size
        assert lower <= result.objective + rounding * size


def check_solutions(problem, solver, rounding=1e-9):
    """α, objective, upper bound and scores belong together, to rounding: of products in single precision to theirs."""
    for k, result in enumerate(solver.results):
        kernels, h, lam, p = problem.parts(k)
        size = abs(result.objective)
        assert value(kernels, result.dual, result.weights, h, lam) == pytest.approx(
            result.objective, abs=rounding * size
        )
        _, upper = bounds(kernels, result.dual, result.weights, h, lam, p)
        assert upper == pytest.approx(result.bound, abs=rounding * size)
        if result.status is Status.FINISHED:
            continue  # whoever runs the plan scores it
        combined = np.tensordot(result.weights, problem.held_out[problem.points[k].space], axes=1)
        assert error(result.scores[None], (combined @ result.dual)[None]) < rounding


def worst(solver):
    return max(result.gap for result in solver.results)


def objectives(solver):
    return np.array([result.objective for result in solver.results])


# --- new directions -----------------------------------------------------------------------------------------


def departure(basis):
    """How far columns are from orthonormal."""
    basis = basis.astype(np.float64)
    return np.abs(basis.T @ basis - np.eye(basis.shape[1])).max(initial=0.0)


@st.composite
def blocks(draw):
    """Blocks that extend one another: nearly dependent, nearly inside what was there before, of any scale."""
    m = draw(st.integers(6, 40))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    found, before = [], np.zeros((m, 1))
    for _ in range(draw(st.integers(1, 12))):
        b, rank = draw(st.integers(1, 8)), draw(st.integers(1, 4))
        inside = before @ rng.standard_normal((before.shape[1], b))
        core = rng.standard_normal((m, rank)) @ rng.standard_normal((rank, b))
        noise = rng.standard_normal((m, b)) * 10.0 ** draw(st.floats(-17, 0))
        block = (inside + core * 10.0 ** draw(st.floats(-17, 0)) + noise) * 10.0 ** rng.uniform(-9, 9, b)
        found.append(block)
        before = np.concatenate([before, block / np.linalg.norm(block, axis=0)], axis=1)
    return found


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-6), (np.float64, 1e-12)])
@given(blocks())
def test_bases_stay_orthonormal(dtype, tolerance, found):
    basis = np.zeros((len(found[0]), 0), dtype=dtype)
    for block in found:
        new = orthonormal_to(basis, block.astype(dtype))
        assert new.dtype == dtype
        basis = np.concatenate([basis, new], axis=1)
        assert departure(basis) < tolerance
    assert basis.shape[1] <= len(basis)


@pytest.mark.parametrize(("dtype", "noise"), [(np.float32, 1e-6), (np.float64, 1e-14)])
@given(st.integers(0, 2**32), st.data())
def test_the_span_is_kept_and_what_depends_is_dropped(dtype, noise, seed, data):
    """Of well separated directions, repeated in any order and in rounding's distance, each is there once."""
    rng = np.random.default_rng(seed)
    m, r, d = 40, data.draw(st.integers(0, 10)), data.draw(st.integers(1, 6))
    basis = np.linalg.qr(rng.standard_normal((m, r)))[0].astype(dtype)
    directions = np.linalg.qr(rng.standard_normal((m, d)))[0]
    places = data.draw(st.lists(st.integers(0, d - 1), min_size=d, max_size=12).filter(lambda p: len(set(p)) == d))
    block = directions[:, places] + noise * rng.standard_normal((m, len(places)))
    block += basis @ rng.standard_normal((r, len(places)))
    new = orthonormal_to(basis, block.astype(dtype))
    assert new.shape[1] == d
    whole = np.concatenate([basis, new], axis=1).astype(np.float64)
    assert np.linalg.norm(block - whole @ (whole.T @ block), axis=0).max() < 1e4 * noise


def test_nothing_new_gives_nothing():
    rng = np.random.default_rng(2)
    basis = np.linalg.qr(rng.standard_normal((20, 6)))[0]
    for block in (basis @ rng.standard_normal((6, 4)), np.zeros((20, 3)), np.zeros((20, 0))):
        assert orthonormal_to(basis, block).shape == (20, 0)
        assert dominant_block(basis, block, 4, 1e-6, rng).shape == (20, 0)
    full = np.linalg.qr(rng.standard_normal((20, 20)))[0]
    assert orthonormal_to(full, rng.standard_normal((20, 3))).shape == (20, 0)


@pytest.mark.parametrize("columns", [5, 12, 30, 200])
def test_the_dominant_block_has_the_leading_directions(columns):
    """Those of the singular value decomposition of what is outside the basis; of a sketch, nearly so."""
    rng = np.random.default_rng(3)
    m, width = 24, 4
    basis = np.linalg.qr(rng.standard_normal((m, 5)))[0]
    left = np.linalg.qr(np.concatenate([basis, rng.standard_normal((m, 5))], axis=1))[0][:, 5:]
    right = np.linalg.qr(rng.standard_normal((columns, 5)))[0]
    sizes = np.array([1.0, 0.5, 0.25, 0.125, 1e-9])
    wanted = (left * sizes) @ right.T + basis @ rng.standard_normal((5, columns))
    found = dominant_block(basis, wanted, width, 1e-6, rng)
    assert found.shape == (m, width)
    assert departure(np.concatenate([basis, found], axis=1)) < 1e-12
    np.testing.assert_allclose(np.linalg.svd(left[:, :4].T @ found)[1], 1, atol=1e-6)
    if columns <= 8:
        first = dominant_block(basis, wanted, 2, 1e-6, rng)
        np.testing.assert_allclose(np.linalg.svd(left[:, :2].T @ first)[1], 1, atol=1e-6)


# --- reduced problems ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("lam", [1e-4, 1e-2, 1.0])
@pytest.mark.parametrize("p", [1.0, 1 + 2**-6, 1.5, 2.0, 8.0, np.inf])
def test_a_complete_basis_gives_the_full_problem(p, lam):
    """V = I, and V = any basis of the whole space that need not be orthonormal: both have the exact optimum."""
    problem = Problem.of("binary", [p], [lam])
    kernels, h, *_ = problem.parts(0)
    best = optimum(kernels, h, lam, p)
    start = uniform_weights(len(kernels), p)
    rng = np.random.default_rng(4)
    for basis in (np.eye(len(h)), np.eye(len(h)) + 0.3 * rng.standard_normal((len(h), len(h))) / np.sqrt(len(h))):
        gram = np.einsum("ra,jrs,sb->jab", basis, kernels, basis)
        found = solve_restricted(MemoryOracle(gram, basis.T @ h, lam, Ball(p), basis.T @ basis), start, 1e-8)
        certificate, alpha = found.certificate, basis @ found.alpha
        assert certificate.weights_gap <= 1e-8
        assert certificate.objective == pytest.approx(best, rel=2e-6)
        assert norm(found.beta, p) == pytest.approx(1, abs=1e-9)
        assert certificate.objective == pytest.approx(value(kernels, alpha, found.beta, h, lam), rel=1e-8)
        assert certificate.upper == pytest.approx(bounds(kernels, alpha, found.beta, h, lam, p)[1], rel=1e-8)


@given(st.integers(0, 2**32), st.sampled_from(EXPONENTS), st.floats(-6, 1))
def test_a_subspace_has_values_of_the_full_problem(seed, p, exponent):
    """S and F at α = V a; the optimum over fewer α is higher, and J_V is maximal there."""
    rng = np.random.default_rng(seed)
    kernels, h, lam = psd(3, 12, seed) / 100, rng.standard_normal((12, 2)), 10.0**exponent
    basis = np.linalg.qr(rng.standard_normal((12, 5)))[0]
    gram = np.einsum("ra,jrs,sb->jab", basis, kernels, basis)
    oracle = MemoryOracle(gram, basis.T @ h, lam, Ball(p), basis.T @ basis)
    found = solve_restricted(oracle, uniform_weights(3, p), 1e-6)
    certificate, alpha = found.certificate, basis @ found.alpha
    size = abs(certificate.objective)
    assert certificate.weights_gap <= 1e-6
    assert value(kernels, alpha, found.beta, h, lam) == pytest.approx(certificate.objective, abs=1e-8 * size)
    assert bounds(kernels, alpha, found.beta, h, lam, p)[1] == pytest.approx(certificate.upper, abs=1e-8 * size)
    assert certificate.objective >= solve(kernels, found.beta, h, lam)[1] - 1e-8 * size
    for other in onto_sphere(rng.random(3), p), onto_sphere(rng.random(3), p):
        assert solve(gram, other, basis.T @ h, lam)[1] <= certificate.upper + 1e-9 * size


# --- preconditioners ------------------------------------------------------------------------------------------------


@st.composite
def weightings(draw, n=5):
    """Weights of very different sizes, some of them zero, not all."""
    powers = draw(st.lists(st.floats(-6, 0), min_size=n, max_size=n))
    zero = draw(st.lists(st.booleans(), min_size=n, max_size=n).filter(lambda z: not all(z)))
    return np.where(zero, 0.0, 10.0 ** np.array(powers))


@given(weightings(), weightings(), st.floats(-8, 1), st.floats(3, 10), st.integers(0, 2**32), st.integers(1, 9))
def test_the_bound_of_a_preconditioner_holds(beta, preconditioner, exponent, step, seed, rank):
    """½ RᵀA⁻¹R ≤ ½ RᵀM⁻¹R with M = ½(I + K(β̄)/ρ), the ridge rounded up, whenever it is used as a bound."""
    lam, near = 10.0**exponent, closeness(beta, preconditioner)
    rho = ridge(lam, near.scale, step)
    support = preconditioner > 0
    if near.bounds:
        assert near.scale == (beta[support] / preconditioner[support]).min() > 0
        kernels = psd(5, 10, seed, rank)
        residual = np.random.default_rng(seed).standard_normal((10, 2))
        exact = np.sum(residual * np.linalg.solve(system(kernels, beta, lam), residual))
        bound = np.sum(residual * np.linalg.solve(system(kernels, preconditioner, rho), residual))
        assert exact <= bound * (1 + 1e-8)
    if np.any(beta[~support] > 1e-6 * beta.sum()):
        assert near.condition >= 1e9


@given(weightings(), weightings())
def test_no_ratio_of_single_weights_makes_a_ridge_tiny(beta, preconditioner):
    """K(β̄)/ρ of a preconditioner stays of the size of K(β)/λ, however small single reference weights are."""
    support = preconditioner > 0
    assert closeness(beta, preconditioner).scale * preconditioner.sum() <= max(
        beta[support].sum() * (1 + 1e-9), 1e-12 * preconditioner.sum()
    )


@given(st.floats(-8, 2), st.floats(-6, 0), st.floats(3, 10))
def test_ridges_are_rounded_up_to_few(exponent, log_scale, step):
    lam, scale = 10.0**exponent, 10.0**log_scale
    rho = ridge(lam, scale, step)
    assert rho >= lam / scale * (1 - 1e-8)
    assert rho <= lam / scale * step * (1 + 1e-8)
    powers = np.log(rho / lam) / np.log(step)
    assert powers == pytest.approx(round(powers), abs=1e-8)
    assert ridge(lam, 1.0, step) == pytest.approx(lam, rel=1e-11)


def test_ridges_of_neighbors_are_shared():
    lams = np.geomspace(1e-8, 10, 10)
    step = grid_step(lams)
    assert step == pytest.approx(10)
    assert len({ridge(lam, 0.3, step) for lam in lams} | {ridge(lam, 0.02, step) for lam in lams}) == len(lams) + 1
    assert grid_step([1.0]) == grid_step([1.0, 1.0]) == 10
    assert grid_step([1.0, 4.0, 2.0]) == 3
    assert grid_step([1.0, 1e5]) == 10


@given(st.lists(weightings(), min_size=1, max_size=8), st.integers(0, 3), st.integers(1, 8), st.integers(0, 2**16))
def test_preconditioners_are_chosen_farthest_first(betas, known, most, seed):
    rng = np.random.default_rng(seed)
    preconditioners = [rng.random(5) for _ in range(known)]
    gaps = rng.random(len(betas))

    def served(chosen):
        return np.array([min((closeness(b, a).condition for a in chosen), default=1e9) for b in betas])

    chosen = choose_reference_weights(betas, gaps, preconditioners, most)
    assert len(chosen) <= most
    for k, beta in enumerate(chosen):
        assert any(beta is b for b in betas)
        before = served([*preconditioners, *chosen[:k]])
        place = next(p for p, b in enumerate(betas) if b is beta)
        assert before[place] == before.max() > 3
        assert gaps[place] == max(gaps[before == before.max()])
    if len(chosen) < most:
        assert (served([*preconditioners, *chosen]) <= 3).all()


# --- the engine ---------------------------------------------------------------------------------------------

WAYS = {
    "anchors": {"use_preconditioners": True, "block": 16},
    "no preconditioners": {"use_preconditioners": False, "block": 16},
    "tiny blocks": {"use_preconditioners": True, "block": 4},
    "tiny blocks, no preconditioners": {"use_preconditioners": False, "block": 5},
    "as it likes": {},
}


@pytest.mark.parametrize(
    ("kind", "way"),
    [
        *itertools.product(LABELS, ["anchors", "as it likes"]),
        ("multiclass", "no preconditioners"),
        ("binary", "tiny blocks"),
        ("tasks", "tiny blocks, no preconditioners"),
    ],
)
def test_certificates_are_true(kind, way):
    """Every norm, every ridge, two folds: proven gaps within the tolerance, and never below the true gap."""
    problem = Problem.of(kind)
    solver = problem.run(**WAYS[way])
    assert all(result.status is Status.CERTIFIED for result in solver.results)
    assert 0 <= worst(solver) <= TOL
    check_claims(problem, solver)
    check_solutions(problem, solver)


@pytest.mark.parametrize("way", ["anchors", "tiny blocks, no preconditioners"])
@pytest.mark.parametrize("kind", ["binary", "multiclass"])
def test_the_exact_optimum_is_enclosed(kind, way):
    problem = Problem.of(kind, lams=[1e-4, 1e-2, 1.0], folds=FOLDS[:1])
    solver = problem.run(**WAYS[way])
    for k, result in enumerate(solver.results):
        best = optimum(*problem.parts(k))
        size = abs(best)
        assert result.objective - (result.gap * size - (result.bound - result.objective)) <= best + 2e-6 * size
        assert best <= result.bound + 2e-6 * size
        assert abs(result.objective - best) <= TOL * size


@pytest.mark.parametrize("tol", [1e-2, 1e-8])
def test_other_tolerances(tol):
    problem = Problem.of("tasks", ps=[1.0, 1.5, np.inf], lams=[1e-4, 1e-1])
    solver = problem.run(tol=tol, block=12)
    assert worst(solver) <= tol
    check_claims(problem, solver)
    check_solutions(problem, solver)


@pytest.mark.parametrize("steps", [(), ("cosine",), ("center", "cosine"), ("multiplicative", "center")])
def test_other_steps(steps):
    """Combined kernels of unit norm are added entry by entry; kernels without steps need no statistics."""
    problem = Problem.of("binary", ps=[1.0, 2.0], lams=[1e-2, 1.0], steps=steps)
    solver = problem.run(block=12, use_preconditioners=True)
    assert worst(solver) <= TOL
    check_claims(problem, solver)
    check_solutions(problem, solver)


def test_single_precision():
    """Certificates are those of the kernels as they are stored."""
    problem = Problem.of("tasks", ps=[1.0, 1.5], lams=[1e-4, 1e-1], dtype=np.float32)
    for use_preconditioners in (True, False):
        solver = problem.run(block=12, use_preconditioners=use_preconditioners, tol=1e-6)
        assert worst(solver) <= 1e-6
        single = 2 * float(np.finfo(np.float32).eps)
        check_claims(problem, solver, single)
        check_solutions(problem, solver, single)


def test_preconditioners_save_passes_at_small_ridges():
    """The residual alone is loose by about κ/λ: without preconditioners a basis of nearly all dimensions is needed."""
    problem = Problem.of("binary", lams=[1e-6])
    with_preconditioners, without = (problem.run(use_preconditioners=use, block=8) for use in (True, False))
    width = [max(entry.basis for entry in solver.history) for solver in (with_preconditioners, without)]
    assert width[0] < 0.7 * width[1]
    assert worst(with_preconditioners) <= TOL


@pytest.mark.parametrize("room", [0, 1])
def test_preconditioners_take_half_of_what_is_free_on_the_disk_at_most(monkeypatch, room):
    """Without room the residuals alone extend the basis; with room for one of each fold they come one at a time."""
    problem = Problem.of("multiclass", ps=[1.0, 2.0], lams=[1e-4, 1e-2])
    taken = sum(space.preconditioner_sizes[1] for space in problem.solver()._spaces)
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=2 * taken * room + 1))
    added = []
    monkeypatch.setattr(
        f"{SubspaceSolver.__module__}.add_preconditioners",
        lambda *a: added.append(len(a[1])) or add_preconditioners(*a),
    )
    solver = problem.run(block=12, basis_bytes=2**30)
    assert max(added, default=0) == room * len(FOLDS)
    check_claims(problem, solver)
    check_solutions(problem, solver)


def test_one_kernel_and_weights_that_are_fixed():
    """One kernel, and p = ∞: nothing to learn but α."""
    K = in_memory(digits()[0], 25)
    problem = Problem.of("multiclass", lams=[1e-4, 1.0], K=K.select([1]))
    problem = problem._replace(
        dense=[kernels[1:2] for kernels in problem.dense], held_out=[kernels[1:2] for kernels in problem.held_out]
    )
    solver = problem.run(block=12)
    for result in solver.results:
        np.testing.assert_array_equal(result.weights, [1.0])
    check_claims(problem, solver)
    check_solutions(problem, solver)


def test_every_place_gives_the_same(scheduler):
    problem = Problem.of("tasks", ps=[1.0, 2.0], lams=[1e-4, 1e-1])
    solver = problem.run(block=16, tol=1e-6)
    assert worst(solver) <= 1e-6
    check_claims(problem, solver)
    check_solutions(problem, solver)
    with dask.config.set(scheduler="synchronous"):
        reference = problem.run(block=16, tol=1e-6)
    assert [entry.kind for entry in solver.history] == [entry.kind for entry in reference.history]
    # Sums are cut by the data alone, and each task takes one BLAS thread.
    np.testing.assert_array_equal(objectives(solver), objectives(reference))
    for result, other in zip(solver.results, reference.results, strict=True):
        np.testing.assert_array_equal(result.weights, other.weights)


@pytest.mark.parametrize("use_preconditioners", [True, False])
def test_a_pass_reads_each_tile_once(use_preconditioners):
    """`n_passes` and the history tell what is read: each kernel that has weight once a pass, for all folds."""
    K, source = over(in_memory(digits()[0], 25), Counting)
    problem = Problem.of("binary", ps=[1.5, 2.0], lams=[1e-3, 1e-1], K=K)
    source.reads.clear()
    solver = problem.run(block=12, use_preconditioners=use_preconditioners)
    tiles = len(K) * len(K.view.tile_tasks())
    assert source.reads.total() == solver.n_passes * tiles
    assert set(source.reads.values()) == {solver.n_passes}
    assert len(solver.history) == solver.n_passes > 2
    certified = [entry.certified for entry in solver.history]
    assert certified == sorted(certified)


IN_TURN = {"use_preconditioners": True, "block": 12, "finish": "report"}
"""With little memory the columns of both folds ride passes of their own, from the first block on."""


def in_turn():
    return Problem.of("multiclass", ps=[1.0, 2.0], lams=[1e-5, 1e-3, 1e-1, 10.0])


@pytest.fixture
def nothing_held(monkeypatch):
    """What the solver holds of so small a problem is more than its passes take: as of large sets, it does not count."""
    monkeypatch.setattr(engine, "held_bytes", lambda *_: 0)
    monkeypatch.setattr(engine, "fits", lambda *_: True)


@pytest.mark.usefixtures("nothing_held")
def test_little_memory_takes_folds_in_turn():
    problem = in_turn()
    with dask.config.set({"dmkl.memory": "90KiB"}):
        solver = problem.run(**IN_TURN)
    assert [entry.basis for entry in solver.history][:5] == [0, 12, 12, 24, 24]
    assert [entry.basis for entry in problem.run(**IN_TURN).history][:3] == [0, 12, 24]
    check_claims(problem, solver)


@pytest.fixture
def notes():
    """What is told of the progress of the work."""
    heard = []

    class Listening(progress.Watch):
        def note(self, text):
            heard.append(text)

    with progress.watching(Listening()):
        yield heard


def test_progress_is_told(notes):
    Problem.of("binary", ps=[1.0, 2.0], lams=[1e-4, 1e-1]).run(block=8)
    assert notes[0].startswith("0 of 8 settings solved")
    assert notes[-1].startswith("8 of 8 settings solved; pass")


# --- what becomes of the rest -------------------------------------------------------------------------------

TIGHT = {"too small a basis": {"basis_bytes": 150_000}, "no basis": {"basis_bytes": 1}, "one pass": {"max_passes": 1}}


@pytest.mark.parametrize("limit", TIGHT)
@pytest.mark.parametrize("finish", ["direct", "cg", "report"])
def test_what_the_basis_leaves_open(finish, limit):
    problem = Problem.of("tasks", ps=[1.0, 1.5, np.inf], lams=[1e-5, 1e-2])
    solver = problem.run(block=8, finish=finish, **TIGHT[limit])
    statuses = {result.status for result in solver.results}
    if finish == "report":
        assert Status.BASIS in statuses
        for result in solver.results:
            assert (result.status is Status.BASIS) == (result.gap > TOL)
        assert np.isfinite(worst(solver))
    else:
        assert Status.FINISHED in statuses
        assert statuses <= {Status.FINISHED, Status.CERTIFIED}
        assert worst(solver) <= TOL
        assert ("factor" in [entry.kind for entry in solver.rounds]) == (finish == "direct")
    check_claims(problem, solver)
    check_solutions(problem, solver)


def test_auto_finishes_directly_where_that_fits():
    problem = Problem.of("binary", ps=[1.5], lams=[1e-5])
    assert "factor" in [entry.kind for entry in problem.run(block=8, basis_bytes=1).rounds]
    with dask.config.set({"dmkl.memory": "40KiB"}):
        with pytest.raises(
            MemoryBudgetError, match=r"finish='direct' holds a combined kernel in memory, .*finish='cg'"
        ):
            problem.run(block=8, basis_bytes=1, finish="direct", use_preconditioners=False)


@pytest.mark.usefixtures("synchronous")
def test_a_budget_that_a_refusal_names_is_enough():
    kernels, y = digits()
    K, model = in_memory(kernels, 25), dmkl.MKFDA(solver="subspace")
    grid = {"p": [1.5], "lam": [1e-3, 1e-2]}
    with dask.config.set({"dmkl.memory": "60KiB"}):
        with pytest.raises(MemoryBudgetError, match=r"on this machine \(points") as refused:
            dmkl.search(model, K, y, grid, 2, refit=False)
    enough = str(refused.value).split("Set dmkl.memory to ")[1].split(" (")[0]
    with dask.config.set({"dmkl.memory": enough}):
        assert (dmkl.search(model, K, y, grid, 2, refit=False).scores["gap"] < 1e-4).all()


@pytest.mark.usefixtures("nothing_held", "synchronous")
def test_no_room_for_an_preconditioner_is_told(notes):
    """With how much would do."""
    problem = Problem.of("binary", ps=[2.0], lams=[1e-1])
    for budget, told in (("70KiB", True), ("1MiB", False)):
        notes.clear()
        with dask.config.set({"dmkl.memory": budget}):
            problem.run(block=20, max_passes=2, finish="report")
        assert notes
        assert all(("set dmkl.memory to 1 MiB" in note) == told for note in notes)


def test_an_indefinite_kernel_is_told():
    """Its quadratic form comes out negative on the way: no certificate is given that it would make untrue."""
    kernels, y = digits()
    q = np.linalg.qr(np.random.default_rng(3).standard_normal((90, 90)))[0]
    indefinite = (q * np.where(np.arange(90) < 40, 1.0, -0.3)) @ q.T
    K = in_memory(np.concatenate([kernels, indefinite[None]]), 25)
    train = ORDER[:60]
    for lam in (1e-6, 1e-3):
        with pytest.raises(IndefiniteKernelError, match="kernel_5"):
            dmkl.MKFDA(1.5, lam, solver="subspace").fit(K[train, train], y[train] < 5)


# --- as a solver of MKFDA -----------------------------------------------------------------------------------

TRAIN, TEST = FOLDS[0]


def trained(kind, solver, **options):
    kernels, y = digits()
    return dmkl.MKFDA(solver=solver, **options).fit(in_memory(kernels, 25)[TRAIN, TRAIN], LABELS[kind](y)[TRAIN])


@pytest.mark.parametrize("kind", LABELS)
@pytest.mark.parametrize("p", EXPONENTS)
def test_the_estimator_agrees_with_direct(p, kind):
    direct, model = (trained(kind, solver, p=p, lam=1e-2, tol=1e-6) for solver in ("direct", "subspace"))
    assert model.solver_ == "subspace"
    assert np.max(model.gap_) <= 1e-6
    np.testing.assert_allclose(model.objective_, direct.objective_, rtol=2e-6)
    np.testing.assert_allclose(model.weights_, direct.weights_, atol=1e-2)
    testing = in_memory(digits()[0], 25)[TEST, TRAIN]
    scores, expected = (m.decision_function(testing) for m in (model, direct))
    np.testing.assert_allclose(scores, expected, atol=1e-2 * np.abs(expected).max())
    for name in ("objective", "upper", "gap", "weight"):
        assert np.isfinite(model.history_[name].isel(iteration=0)).all()
    if kind != "tasks":
        assert model.history_.gap[-1] == pytest.approx(model.gap_, rel=1e-6)
        kernels, h, lam, p = Problem.of(kind, [p], [1e-2], folds=FOLDS[:1]).parts(0)
        alpha, beta = model.dual_coef_.values, model.weights_.values
        _, upper = bounds(kernels, alpha, beta, h, lam, p)
        objective = value(kernels, alpha, beta, h, lam)
        assert model.objective_ == pytest.approx(objective, rel=1e-9)
        assert (upper - solve(kernels, beta, h, lam)[1]) / abs(objective) <= model.gap_ + 1e-9


@pytest.mark.parametrize("p", [1.0, 1.5, 2.0])
def test_weights_are_determined_at_large_ridges(p):
    """Where the objective hardly depends on the kernels, the weights are solved for as well as anywhere."""
    kernels, h, lam, _ = Problem.of("multiclass", [p], [10.0], folds=FOLDS[:1]).parts(0)
    exact = solve_restricted(MemoryOracle(kernels, h, lam, Ball(p)), uniform_weights(len(kernels), p), 1e-12)
    model = trained("multiclass", "subspace", p=p, lam=lam)
    np.testing.assert_allclose(model.weights_, exact.beta, atol=2e-2)


@pytest.mark.parametrize("solver", ["direct", "subspace"])
def test_each_task_has_its_own_norm_and_ridge(solver):
    ps, lams = (1.0, np.inf), (1e-3, 1e-1)
    model = trained("tasks", solver, p=ps, lam=lams, tol=1e-6)
    labels = LABELS["tasks"](digits()[1])[TRAIN]
    K = in_memory(digits()[0], 25)[TRAIN, TRAIN]
    for task, (p, lam) in enumerate(zip(ps, lams, strict=True)):
        alone = dmkl.MKFDA(p, lam, solver="direct", tol=1e-6).fit(K, labels[:, task])
        np.testing.assert_allclose(model.weights_.isel(task=task), alone.weights_, atol=1e-2)
        np.testing.assert_allclose(model.objective_.isel(task=task), alone.objective_, rtol=2e-6)
    for wrong in ({"p": (1.0, 2.0, 3.0)}, {"lam": [1.0, 2.0, 3.0]}):
        with pytest.raises(InputError, match="has 3 values and there are 2 problems"):
            trained("tasks", solver, **wrong)
    with pytest.raises(InputError, match="p has 2 values and there are 1 problems"):
        trained("multiclass", solver, p=ps)


def test_auto_takes_the_subspace_where_direct_does_not_fit():
    kernels, y = digits()
    K = in_memory(kernels.repeat(12, axis=1).repeat(12, axis=2), 256)  # every sample twelve times
    y = LABELS["binary"](y).repeat(12)
    assert dmkl.MKFDA(lam=1e-5).fit(K, y).solver_ == "direct"
    with dask.config.set({"dmkl.memory": "13MB"}):
        model = dmkl.MKFDA(lam=1e-5).fit(K, y)
    assert model.solver_ == "subspace"
    assert model.gap_ <= TOL


def test_an_open_end_is_told():
    with pytest.warns(ConvergenceWarning, match=r"relative gap of .* above tol=0\.0001\. The subspace was as large"):
        model = trained("binary", dmkl.Subspace(basis=3000, finish="report"), p=1.0, lam=1e-5)
    kernels, h, lam, _ = Problem.of("binary", [1.0], [1e-5], folds=FOLDS[:1]).parts(0)
    lower = solve(kernels, model.weights_.values, h, lam)[1]
    upper = bounds(kernels, model.dual_coef_.values, model.weights_.values, h, lam, 1.0)[1]
    assert TOL < model.gap_
    assert (upper - lower) / abs(model.objective_) <= model.gap_ + 1e-9
    assert "basis=" in model.status_
    for finish in ("direct", "cg", "auto"):
        finished = trained("binary", dmkl.Subspace(basis="3kB", finish=finish), p=1.0, lam=1e-5)
        assert finished.gap_ <= TOL
        assert finished.solver_ == "subspace"


def test_passes_of_the_estimator_are_counted():
    kernels, y = digits()
    K, source = over(in_memory(kernels, 25)[TRAIN, TRAIN], Counting)
    model = dmkl.MKFDA(2.0, solver="subspace").fit(K, LABELS["binary"](y)[TRAIN])
    assert source.reads.total() == model.n_passes_ * len(K) * len(K.view.tile_tasks())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"basis": "plenty"}, "basis must be a size such as '8GiB' or a number of bytes, got 'plenty'"),
        ({"basis": 0}, "basis must be positive, got 0"),
        ({"basis": "-1GB"}, "basis must be positive, got '-1GB'"),
        ({"finish": "later"}, "finish must be 'auto', 'direct', 'cg' or 'report', got 'later'"),
        ({"solver": "subspaces"}, "solver must be .* 'interleaved', 'dual' or 'stacked', got 'subspaces'"),
    ],
)
def test_unfit_parameters_are_named(options, message):
    with pytest.raises(InputError, match=message):
        trained("binary", options.get("solver") or dmkl.Subspace(**options))


def test_saved_and_loaded(tmp_path):
    model = trained("tasks", dmkl.Subspace(finish="cg", basis="1GiB"), p=(1.0, np.inf), lam=(1e-3, 0.1))
    model.save(tmp_path / "model.zarr")
    loaded = dmkl.load(tmp_path / "model.zarr")
    assert {name: repr(value) for name, value in loaded.get_params().items()} == {
        name: repr(value) for name, value in model.get_params().items()
    }
    assert (loaded.solver_, loaded.n_passes_) == ("subspace", model.n_passes_)
    testing = in_memory(digits()[0], 25)[TEST, TRAIN]
    np.testing.assert_array_equal(loaded.decision_function(testing), model.decision_function(testing))
    np.testing.assert_array_equal(loaded.gap_, model.gap_)


# --- the workspace ------------------------------------------------------------------------------------------


def test_a_folder_of_other_work_is_refused(tmp_path):
    identity = {"the grid": "p = 1", "the labels": "a" * 200}
    Workspace(tmp_path / "state", identity).commit({"done": 1})
    assert Workspace(tmp_path / "state", dict(identity)).state == {"done": 1}
    with pytest.raises(InputError, match=r"differs in: the grid\. the grid was p = 1 and is p = 2 now"):
        Workspace(tmp_path / "state", {**identity, "the grid": "p = 2"})
    with pytest.raises(InputError, match=r"differs in: the labels, the folds\. the labels was a{50,}….* and is b now"):
        Workspace(tmp_path / "state", {**identity, "the labels": "b", "the folds": "x"})
    assert Workspace(tmp_path / "state", identity).state == {"done": 1}


def test_a_folder_with_something_else_is_refused(tmp_path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(InputError, match="holds other files; give a folder of its own"):
        Workspace(tmp_path, {})
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"format": "dmkl-search-state", "format_ver', "is not the state of a search"),
        ("", "is not the state of a search"),
        ('{"format": "another", "format_version": 1}', "format 'another', version 1, without"),
        ('{"format": "dmkl-search-state", "format_version": 99}', "version 99"),
    ],
)
def test_an_unreadable_state_is_refused(tmp_path, content, message):
    Workspace(tmp_path / "state", {}).commit({"done": 1})
    (tmp_path / "state" / "state.json").write_text(content)
    with pytest.raises(StoreError, match=f"{message}.*move the folder away"):
        Workspace(tmp_path / "state", {})


def test_temporary_folders_go(tmp_path):
    temporary = Workspace(None, {})
    folder = temporary.path
    assert folder.is_dir()
    temporary.commit({})
    temporary.close()
    assert not folder.exists()
    kept = Workspace(tmp_path / "state", {})
    kept.close()
    assert kept.path.is_dir()


def test_statistics_come_back(tmp_path):
    kernels, _ = digits()
    K = in_memory(kernels, 25).normalize("cosine")[ORDER, ORDER[:50]].center().normalize()
    lenses, _ = measure([K.view, K.view])
    workspace = Workspace(tmp_path / "state", {})
    described = json.loads(json.dumps(workspace.save_statistics([lens.fitted for lens in lenses])))
    V = np.random.default_rng(5).standard_normal((50, 2))
    for lens, chain in zip(lenses, workspace.load_statistics(described), strict=True):
        for one, other in zip(chain.steps, lens.fitted.steps, strict=True):
            assert one.described() == other.described()
            assert set(one.arrays()) == set(other.arrays())
            for name, array in one.arrays().items():
                np.testing.assert_array_equal(array, other.arrays()[name])
        product = [f.left(0, kernels[0][:, :] @ f.right(0, V)[0], f.right(0, V)[1]) for f in (chain, lens.fitted)]
        np.testing.assert_array_equal(*product)


# --- going on after the end ---------------------------------------------------------------------------------


class CutOff(Exception):
    pass


@pytest.fixture
def cut_off(monkeypatch):
    """Lets so many passes be committed; after the next one the work ends before or after it is."""
    commit = Workspace.commit

    def arm(times, *, before):
        left, passes = iter(range(times)), set()

        def commit_or_end(self, state):
            number = state.get("solver", {}).get("n_passes")
            if number not in passes and next(left, None) is None:
                if not before:
                    commit(self, state)
                raise CutOff
            passes.add(number)
            commit(self, state)

        monkeypatch.setattr(Workspace, "commit", commit_or_end)

    def disarm():
        monkeypatch.setattr(Workspace, "commit", commit)

    return arm, disarm


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def check_preconditioners(problem, solver):
    """The combined kernels on disk are those of the weights that are told of them."""
    for space, kernels in zip(solver._spaces, problem.dense, strict=True):
        for preconditioner in space.preconditioners:
            lower, order = preconditioner.total.matrix()
            expected = np.tensordot(preconditioner.beta, kernels, axes=1)[np.ix_(order, order)]
            assert error(np.tril(lower)[None], np.tril(expected)[None]) < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_what_is_cut_off_goes_on(tmp_path, cut_off, before):
    """At every pass: the same folder leads to the same end, and a pass is repeated at most."""
    problem = Problem.of("tasks", ps=[1.0], lams=[1e-5, 1e-3])
    arm, disarm = cut_off
    options = {"block": 8, "tol": 1e-6}
    clean = problem.run(**options)
    assert [entry.kind for entry in clean.history][:4] == ["anchor", "extend", "extend", "anchor"]
    for k in range(len(clean.history)):
        folder = tmp_path / f"{k}"
        arm(k, before=before)
        with pytest.raises(CutOff):
            problem.run(folder, **options)
        disarm()
        solver = problem.solver(folder, **options)
        assert len(solver.history) == k + (not before)
        check_preconditioners(problem, solver)
        solver.results = driven(solver)
        assert worst(solver) <= 1e-6
        assert solver.n_passes <= clean.n_passes + 1
        check_claims(problem, solver)
        np.testing.assert_allclose(objectives(solver), objectives(clean), rtol=2e-6)


@pytest.mark.slow
def test_leftovers_do_not_matter(tmp_path, cut_off):
    """Files of work that was cut off before it was committed are written anew, whatever is in them."""
    problem = Problem.of("tasks", ps=[1.0], lams=[1e-5, 1e-3])
    arm, disarm = cut_off
    options = {"block": 8, "tol": 1e-6}
    clean = problem.run(**options)
    for k in range(1, len(clean.history)):
        folder = tmp_path / f"{k}"
        arm(k - 1, before=False)
        with pytest.raises(CutOff):
            problem.run(folder, **options)
        committed = contents(folder)
        arm(0, before=True)
        with pytest.raises(CutOff):
            problem.run(folder, **options)
        disarm()
        now = contents(folder)
        assert {path: now.get(path) for path in committed} == committed, "what state.json names was touched"
        for path in set(now) - set(committed):
            path.write_bytes(b"left over")
        problem.run(folder, **options)
        finished = problem.solver(folder, **options)
        finished.results = driven(finished)
        check_claims(problem, finished)
        np.testing.assert_allclose(objectives(finished), objectives(clean), rtol=2e-6)
        for result, reference in zip(finished.results, clean.results, strict=True):
            np.testing.assert_allclose(result.scores, reference.scores, atol=1e-2 * np.abs(reference.scores).max())


def test_sums_that_are_forgotten_stay_until_the_state_does_not_name_them(tmp_path, cut_off):
    """Tiny blocks make many preconditioners and forget many: each state that was committed stays one to go on from."""
    problem = Problem.of("multiclass", ps=[1.0], lams=[1e-6, 1e-4])
    arm, disarm = cut_off
    clean = problem.run(block=4)
    assert [entry.kind for entry in clean.history].count("anchor") > 3
    for k in [k for k, entry in enumerate(clean.history) if entry.kind == "anchor"][1:]:
        arm(k, before=True)
        with pytest.raises(CutOff):
            problem.run(tmp_path / f"{k}", block=4)
        disarm()
        solver = problem.solver(tmp_path / f"{k}", block=4)
        check_preconditioners(problem, solver)
        solver.results = driven(solver)
        assert worst(solver) <= TOL
        check_claims(problem, solver)


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.usefixtures("nothing_held")
def test_folds_in_turn_are_cut_off_between_them(tmp_path, cut_off, k):
    problem = in_turn()
    arm, disarm = cut_off
    with dask.config.set({"dmkl.memory": "90KiB"}):
        arm(k, before=False)
        with pytest.raises(CutOff):
            problem.run(tmp_path / "state", **IN_TURN)
        disarm()
        solver = problem.run(tmp_path / "state", **IN_TURN)
    assert max(entry.basis for entry in solver.history) >= 24
    check_claims(problem, solver)


def test_a_finished_state_is_read_and_nothing_else(tmp_path):
    K, source = over(in_memory(digits()[0], 25), Counting)
    problem = Problem.of("tasks", ps=[1.0, 2.0], lams=[1e-5, 1e-1], K=K)
    for limit in ({}, {"basis_bytes": 60_000, "finish": "direct"}):
        folder = tmp_path / f"{len(limit)}"
        first = problem.run(folder, block=8, **limit)
        source.reads.clear()
        again = problem.run(folder, block=8, **limit)
        assert not source.reads
        assert again.n_passes == first.n_passes
        np.testing.assert_allclose(objectives(again), objectives(first), rtol=1e-6)
        check_claims(problem, again)
        for one, other in zip(again.results, first.results, strict=True):
            assert one.status == other.status
            # Whoever runs the plan scores what another solver has finished, from its dual variables.
            found, before = (r.dual if r.status is Status.FINISHED else r.scores for r in (one, other))
            np.testing.assert_allclose(found, before, atol=1e-9 * np.abs(before).max())


def test_what_was_reported_can_be_finished_later(tmp_path):
    problem = Problem.of("binary", ps=[1.0, 2.0], lams=[1e-5, 1e-1])
    reported = problem.run(tmp_path / "state", block=8, basis_bytes=60_000, finish="report")
    assert worst(reported) > TOL
    more = problem.run(tmp_path / "state", block=8)
    assert worst(more) <= TOL
    assert more.n_passes > reported.n_passes
    assert more.history[: len(reported.history)] == reported.history
    check_claims(problem, more)


def test_files_are_whole_or_not_there(tmp_path):
    path = tmp_path / "array.npy"
    save_array(path, np.arange(3))
    save_array(path, np.arange(4))
    np.testing.assert_array_equal(np.load(path), np.arange(4))

    assert [file.name for file in tmp_path.iterdir()] == ["array.npy"]


@pytest.mark.slow
def test_workers_that_die_lose_nothing(tmp_path):
    """One while preconditioners are added up, another while the basis is extended, in a cluster of two processes."""
    markers = tmp_path / "deaths"
    markers.mkdir()
    reference = Problem.of("tasks", ps=[1.0, 2.0], lams=[1e-4, 1e-1]).run(block=16, tol=1e-6)
    due = ["extend-pass", "combine-pass"]

    class Deadly(progress.Watch):
        def begin(self, what, total_bytes):
            if due and what.startswith(due[-1]):
                (markers / due.pop()).touch()

    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 5}),
        revived_workers(),
        dask.config.set(scheduler="distributed"),
    ):
        K, _ = over(in_memory(digits()[0], 25), Killing, (2, 1, 3), markers)
        problem = Problem.of("tasks", ps=[1.0, 2.0], lams=[1e-4, 1e-1], K=K)
        with progress.watching(Deadly()):
            solver = problem.run(tmp_path / "state", block=16, tol=1e-6)
    assert not due
    assert not list(markers.iterdir())
    assert solver.n_passes == reference.n_passes
    check_claims(problem, solver)
    check_solutions(problem, solver)
    np.testing.assert_allclose(objectives(solver), objectives(reference), rtol=2e-6)


def test_a_folder_that_workers_do_not_see_is_refused(monkeypatch, client):
    """Workers on this machine see every folder: one that says it does not stands in for another machine."""
    problem = Problem.of("binary", ps=[2.0], lams=[1e-1])
    with dask.config.set(scheduler=client):
        monkeypatch.setattr("dmkl.passes.execute.os.path.exists", blind)
        with pytest.raises(
            InputError, match=r"the workers tcp://.* do not see .*a file system that all machines share"
        ):
            problem.run()


def blind(path):
    return False
