"""The subspace solver: its parts, its certificates against dense formulas, and interruptions."""

from __future__ import annotations

from types import SimpleNamespace

import dask
import numpy as np
import pytest
from helpers.damage import flip
from helpers.interruption import cut_off
from helpers.optima import STEPS, bounds, norm, scale, solve, system, value
from helpers.references import Counting, digits, error, in_memory, over, psd
from helpers.subspaces import Problem
from hypothesis import given
from hypothesis import strategies as st

import dmkl
from dmkl.errors import InputError, MemoryBudgetError, StoreError
from dmkl.solvers.fisher.subspace import preconditioners
from dmkl.solvers.fisher.subspace import solver as engine
from dmkl.solvers.fisher.subspace.preconditioners import closeness, ridge
from dmkl.solvers.fisher.subspace.solver import SubspaceSolver
from dmkl.solvers.interface import Status
from dmkl.solvers.workspace import Workspace

EXPONENTS = [1.0, 1 + 2**-6, 1.5, 2.0, np.inf]
LAMBDAS = [1e-6, 1e-3, 1.0, 10.0]
TOL = 1e-4

pytestmark = pytest.mark.usefixtures("rounds")


# --- data ---------------------------------------------------------------------------------------------------
LABELS = {
    "binary": lambda y: (y < 5).astype(int),
    "multiclass": lambda y: y % 4,
    "tasks": lambda y: np.stack([y < 5, y % 3 == 0], axis=1).astype(int),
}
ORDER = np.random.default_rng(1).permutation(90)
FOLDS = [(ORDER[:60], ORDER[60:]), (ORDER[35:], ORDER[:20])]
"""Training rows and held-out rows of different numbers."""


def problem_of(kind, ps=EXPONENTS, lams=LAMBDAS, K=None, folds=FOLDS, steps=STEPS, dtype=np.float64):
    kernels, y = digits()
    kernels = kernels.astype(dtype)
    return Problem.of(in_memory(kernels, 25) if K is None else K, kernels, LABELS[kind](y), folds, ps, lams, steps)


def check_claims(problem, solver, rounding=1e-9):
    """Check the results of each point at its α and weights: [S − gap·|S| + (F − S), F] encloses the optimum.

    J(β) ≤ max J ≤ F(α) for every α and β; both are computed by dense formulas here. `rounding` is the tolerance for
    S, F and scores, relative to S, if their products are in single precision; the gap includes it.
    """
    for k, result in enumerate(solver.results):
        kernels, h, lam, p = problem.parts(k)
        assert (result.weights >= 0).all()
        assert norm(result.weights, p) <= 1 + 1e-12
        _, lower = solve(kernels, result.weights, h, lam)
        size, unit = abs(result.objective), scale(result.objective, h)
        assert (result.bound - lower) / unit <= result.gap + rounding * size / unit
        assert result.bound >= lower - rounding * size
        assert lower <= result.objective + rounding * size
        objective = value(kernels, result.dual, result.weights, h, lam)
        assert objective == pytest.approx(result.objective, abs=rounding * size)
        _, upper = bounds(kernels, result.dual, result.weights, h, lam, p)
        assert upper == pytest.approx(result.bound, abs=rounding * size)
        if result.status is not Status.FINISHED:  # the code that runs the plan scores those
            combined = np.tensordot(result.weights, problem.held_out[problem.jobs[k].training], axes=1)
            assert error(result.scores[None], (combined @ result.dual)[None]) < rounding


def check(problem, solver, rounding=1e-9):
    """Check that every gap is within the tolerance and that the results are correct."""
    assert 0 <= worst(solver) <= solver.options.tol
    check_claims(problem, solver, rounding)


def worst(solver):
    return max(result.gap for result in solver.results)


def objectives(solver):
    return np.array([result.objective for result in solver.results])


# --- preconditioners ------------------------------------------------------------------------------------------------
@st.composite
def weightings(draw, n=5):
    """Weights of very different sizes, some of them zero."""
    powers = draw(st.lists(st.floats(-6, 0), min_size=n, max_size=n))
    zero = draw(st.lists(st.booleans(), min_size=n, max_size=n).filter(lambda z: not all(z)))
    return np.where(zero, 0.0, 10.0 ** np.array(powers))


@given(
    weightings(),
    weightings(),
    st.booleans(),
    st.floats(-8, 1),
    st.floats(3, 10),
    st.integers(0, 2**32),
    st.integers(1, 9),
)
def test_the_bound_of_a_preconditioner_holds(beta, preconditioner, alike, exponent, step, seed, rank):
    """½ RᵀA⁻¹R ≤ ½ RᵀM⁻¹R with M = ½(I + K(β̄)/ρ), the ridge rounded up, whenever it is used as a bound."""
    if alike:  # otherwise there is hardly ever a bound
        beta = preconditioner * np.random.default_rng(seed).uniform(0.2, 1.0, 5)
    lam, near = 10.0**exponent, closeness(beta, preconditioner)
    rho = ridge(lam, near.scale, step)
    # The ridge is rounded up to a power of the step, so that neighbors share factors.
    assert lam / near.scale * (1 - 1e-8) <= rho <= lam / near.scale * step * (1 + 1e-8)
    powers = np.log(rho / lam) / np.log(step)
    assert powers == pytest.approx(round(powers), abs=1e-8)
    support = preconditioner > 0
    # K(β̄)/ρ is about as large as K(β)/λ, however small single reference weights are.
    largest = max(beta[support].sum() * (1 + 1e-9), 1e-12 * preconditioner.sum())
    assert near.scale * preconditioner.sum() <= largest
    assert near.bounds or not alike
    if near.bounds:
        assert near.scale == (beta[support] / preconditioner[support]).min() > 0
        kernels = psd(5, 10, seed, rank)
        residual = np.random.default_rng(seed).standard_normal((10, 2))
        exact = np.sum(residual * np.linalg.solve(system(kernels, beta, lam), residual))
        bound = np.sum(residual * np.linalg.solve(system(kernels, preconditioner, rho), residual))
        assert exact <= bound * (1 + 1e-8)
    if np.any(beta[~support] > 1e-6 * beta.sum()):
        assert near.condition >= 1e9


# --- the engine ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("kind", "given", "options"),
    [
        ("binary", {}, {}),
        ("binary", {}, {"use_preconditioners": True, "block": 4}),
        ("multiclass", {}, {"use_preconditioners": True, "block": 16}),
        ("multiclass", {}, {"use_preconditioners": False, "block": 16}),
        ("tasks", {"lams": [1e-4, 1e-1]}, {"block": 12, "tol": 1e-2}),
        ("tasks", {"ps": [1.5], "lams": [1e-4, 1e-1]}, {"block": 12, "tol": 1e-8}),
        # Combined kernels of unit norm are added entry by entry; kernels without steps need no statistics.
        *(("binary", {"ps": [1.0, 2.0], "lams": [1e-2], "steps": steps}, {"block": 12}) for steps in ((), ("cosine",))),
        *(
            ("tasks", {"lams": [1e-4, 1e-1], "dtype": np.float32}, {"use_preconditioners": use, "tol": 1e-6})
            for use in (True, False)
        ),
    ],
)
def test_certificates_are_true(kind, given, options):
    """Every norm, every ridge, two folds: proven gaps within the tolerance, and never below the true gap."""
    problem = problem_of(kind, **given)
    solver = problem.run(**options)
    assert all(result.status is Status.CERTIFIED for result in solver.results)
    # Certificates are those of the kernels as stored; the gap includes the rounding of their products.
    check(problem, solver, 2 * float(np.finfo(np.float32).eps) if "dtype" in given else 1e-9)


def test_few_factors_serve_many_ridges(tmp_path, monkeypatch):
    """As on large sets: those of ridges a hundred times apart, and none where the ridge exceeds the kernel."""
    monkeypatch.setattr(preconditioners, "_SHARED", 1)
    problem = problem_of("binary", ps=[1.5], lams=[1e-5, 1e-4, 1e-3, 1.0])
    solver = problem.run(tmp_path, use_preconditioners=True, block=4, finish="report")
    check(problem, solver)
    ridges = {float(path.stem.split("-factor-")[1].removesuffix("-order")) for path in tmp_path.rglob("*-order.npy")}
    assert ridges == {1e-6, 1e-4, 1e-2}


@pytest.mark.parametrize("room", [0, 1])
def test_preconditioners_take_half_of_what_is_free_on_the_disk_at_most(monkeypatch, room):
    """Without space the residuals alone extend the basis; with space for one per fold they are built one at a time."""
    problem = problem_of("multiclass", ps=[1.0, 2.0], lams=[1e-3])
    taken = sum(space.preconditioner_sizes[1] for space in problem.solver()._spaces)
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=2 * taken * room + 1))
    added, whole = [], SubspaceSolver._add_sums
    monkeypatch.setattr(SubspaceSolver, "_add_sums", lambda *a: added.append(len(a[1])) or whole(*a))
    solver = problem.run(block=12, basis_bytes=2**30)
    assert max(added, default=0) == room * len(FOLDS)
    check(problem, solver)


# --- problems that the basis leaves open --------------------------------------------------------------------
TIGHT = {"too small a basis": {"basis_bytes": 50_000}, "no basis": {"basis_bytes": 1}, "one pass": {"max_passes": 1}}


@pytest.mark.parametrize(
    ("finish", "limit"),
    [("report", "too small a basis"), ("direct", "no basis"), ("cg", "one pass"), ("direct", "too small a basis")],
)
def test_what_the_basis_leaves_open(finish, limit):
    problem = problem_of("tasks", ps=[1.0, np.inf], lams=[1e-5, 1e-2], folds=FOLDS[:1])
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


def test_the_cap_on_passes_binds_in_a_search():
    K, y = in_memory(digits()[0], 25), digits()[1] % 3
    grid = {"p": [1.0, 1.5], "lam": [1e-6, 1e-4]}
    estimator = dmkl.MKFDA(solver=dmkl.Subspace(finish="report"), max_iter=3)
    few = dmkl.search(estimator, K, y, grid, cv=2, refit=False, baselines="none")
    many = dmkl.search(estimator.set_params(max_iter=200), K, y, grid, cv=2, refit=False, baselines="none")
    # One pass before the solver's is for statistics, and one after them for leave-one-out scores.
    assert few.n_passes_ <= 5 < many.n_passes_
    assert "open" in set(few.table()["status"])
    assert set(many.table()["status"]) == {"certified"}


def test_auto_finishes_directly_where_that_fits():
    problem = problem_of("binary", ps=[1.5], lams=[1e-5])
    assert "factor" in [entry.kind for entry in problem.run(block=8, basis_bytes=1).rounds]
    with dask.config.set({"dmkl.memory": "40KiB"}):
        with pytest.raises(MemoryBudgetError, match=r"finish='direct' would take .*the combined kernel.*finish='cg'"):
            problem.run(block=8, basis_bytes=1, finish="direct", use_preconditioners=False)


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


# --- the workspace ------------------------------------------------------------------------------------------
def test_a_folder_of_other_files_is_refused(tmp_path):
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


# --- resuming after the end ---------------------------------------------------------------------------------
def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_what_is_cut_off_goes_on(tmp_path):
    """Resume from committed states; files of the uncommitted pass are written again, whatever they contain.

    Tiny blocks make and drop many preconditioners, whose sums stay until no state refers to them.
    """
    problem, options = problem_of("multiclass", ps=[1.0], lams=[1e-6, 1e-4]), {"block": 4}
    clean = problem.run(**options)
    passes = [k for k, entry in enumerate(clean.history) if k and entry.kind == "anchor"]
    assert len(passes) > 1
    for k in passes[-2:]:
        folder = tmp_path / f"{k}"
        with cut_off(k - 1):
            problem.run(folder, **options)
        committed = contents(folder)
        with cut_off(0, before=True):
            problem.run(folder, **options)
        now = contents(folder)
        assert {path: now.get(path) for path in committed} == committed, "what state.json names was touched"
        for path in set(now) - set(committed):
            path.write_bytes(b"left over")
        solver = problem.solver(folder, **options)
        assert len(solver.history) == k
        solver.results = solver.run()
        assert solver.n_passes <= clean.n_passes + 1
        check(problem, solver)
        np.testing.assert_allclose(objectives(solver), objectives(clean), rtol=2 * TOL)


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("points-2.npz", "emptied"),
        ("fold-1/basis-2.npy", "missing"),
        ("fold-0/products-2-*-0.npy", "flipped"),
        ("state.json", "emptied"),
        ("state.json", "flipped"),
    ],
)
def test_a_state_whose_newest_files_are_damaged_goes_back_a_pass(tmp_path, file, damage):
    problem, options = problem_of("binary", ps=[1.0], lams=[1e-2]), {"block": 8, "use_preconditioners": False}
    with cut_off(2):
        problem.run(tmp_path / "state", **options)
    before = problem.solver(tmp_path / "state", **options)
    assert len(before.history) == 3
    (path,) = (tmp_path / "state").glob(file)
    if damage == "missing":
        path.unlink()
    elif damage == "flipped":
        flip(path, 90)
    else:
        path.write_bytes(b"")
    solver = problem.solver(tmp_path / "state", **options)
    assert solver.history == before.history[:2]
    solver.results = solver.run()
    check(problem, solver)


def test_little_memory_takes_folds_in_turn(tmp_path, monkeypatch):
    """Columns of the two folds have separate passes, from the first block on; the run stops between them."""
    # Memory held by the solver exceeds that of the passes in problems as small as these.
    monkeypatch.setattr(engine, "held_bytes", lambda *_: 0)
    monkeypatch.setattr(engine, "fits", lambda *_: True)
    options = {"use_preconditioners": True, "block": 12, "finish": "report"}
    problem = problem_of("multiclass", ps=[1.0, 2.0], lams=[1e-5, 1e-3, 1e-1, 10.0])
    assert [entry.basis for entry in problem.run(**options).history][:3] == [0, 12, 24]
    with dask.config.set({"dmkl.memory": "90KiB"}):
        with cut_off(1):
            problem.run(tmp_path / "state", **options)
        solver = problem.run(tmp_path / "state", **options)
    assert [entry.basis for entry in solver.history][:5] == [0, 12, 12, 24, 24]
    check_claims(problem, solver)


def test_a_finished_state_is_read_and_nothing_else(tmp_path):
    K, source = over(in_memory(digits()[0], 25), Counting)
    problem = problem_of("tasks", ps=[2.0], lams=[1e-5, 1e-1], K=K, folds=FOLDS[:1])
    for limit in ({}, {"basis_bytes": 60_000, "finish": "direct"}):
        folder = tmp_path / f"{len(limit)}"
        first = problem.run(folder, block=8, **limit)
        source.reads.clear()
        again = problem.run(folder, block=8, **limit)
        assert not source.reads
        assert again.n_passes == first.n_passes
        np.testing.assert_allclose(objectives(again), objectives(first), rtol=1e-6)
        check_claims(problem, again)


def test_what_was_reported_can_be_finished_later(tmp_path):
    problem = problem_of("binary", ps=[1.0], lams=[1e-5, 1e-1], folds=FOLDS[:1])
    reported = problem.run(tmp_path / "state", block=8, basis_bytes=60_000, finish="report")
    assert worst(reported) > TOL
    more = problem.run(tmp_path / "state", block=8)
    assert worst(more) <= TOL
    assert more.n_passes > reported.n_passes
    assert more.history[: len(reported.history)] == reported.history
    check_claims(problem, more)


@pytest.mark.parametrize("kind", LABELS)
def test_small_sets_are_solved_by_one_block(kind, monkeypatch):
    monkeypatch.undo()
    problem = problem_of(kind)
    solver = problem.run()
    check(problem, solver)
    assert [(entry.kind, entry.basis) for entry in solver.rounds] == [("extend", 60)]
    limited = problem.run(basis_bytes=1, finish="report")  # the first block alone, as for large sets
    assert limited.rounds[-1].basis < 60
