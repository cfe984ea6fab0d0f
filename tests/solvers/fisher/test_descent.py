"""Every solver against exact optima, and the common parts of solvers that descend on the dual over a span."""

from functools import cache

import dask
import numpy as np
import pytest
from helpers.optima import bounds, case, conjugate, few_digits, norm, optimum, scale, slopes, solve, value
from helpers.references import Counting, dense_view, error, in_memory, over, psd, stepped
from sklearn.metrics.pairwise import rbf_kernel

import dmkl
from dmkl.errors import ConvergenceWarning, InputError, MemoryBudgetError
from dmkl.solvers.driver import drive
from dmkl.solvers.interface import CombinedEntries, EachProduct, Status, ask

POINTS = [
    (1.0625, 1e-3, "binary"),
    (1.5, 1.0, "multiclass"),
    (2.0, 1e-2, "multilabel"),
    (8.0, 1e-3, "multiclass"),
    (np.inf, 1e-2, "binary"),
]
AT_ONE = [(1.0, 1e-3, "multilabel"), (1.0, 1.0, "multiclass")]


@cache
def best(kind, p, lam):
    """The weights of each problem from plain arrays, and its optimum by cvxpy."""
    kernels, _, targets = case(kind)
    return [(dmkl.solve_mkfda(kernels, h, p, lam, tol=1e-8).weights, optimum(kernels, h, lam, p)) for h in targets]


@pytest.mark.usefixtures("rounds")
@pytest.mark.parametrize(
    ("solver", "p", "lam", "kind"),
    [
        *(("dual", *point) for point in POINTS),
        *(("interleaved", *point) for point in [*POINTS, *AT_ONE]),
        *(("anchored", *point) for point in [*POINTS[:3], *AT_ONE]),
        *((solver, *point) for solver in ("direct", "cg", "subspace") for point in [*POINTS, *AT_ONE]),
    ],
)
def test_agrees_with_the_optimum_and_proves_it(solver, p, lam, kind):
    kernels, labels, targets = case(kind)
    K, source = over(in_memory(few_digits()[0], 8), Counting)
    # S hardly depends on β for large λ: accurate weights need a small gap.
    model = dmkl.MKFDA(p, lam, solver=solver, tol=1e-4 if lam < 1e-2 else 1e-7).fit(K, labels)
    assert model.solver_ == solver
    assert model.status_ == Status.CERTIFIED.advice
    weights = model.weights_.values.reshape(len(kernels), -1).T
    alphas = np.split(model.dual_coef_.values, len(weights), axis=1)
    gaps, objectives = np.atleast_1d(model.gap_), np.atleast_1d(model.objective_)
    for alpha, beta, h, gap, objective, (expected, exact) in zip(
        alphas, weights, targets, gaps, objectives, best(kind, p, lam), strict=True
    ):
        lower, upper = bounds(kernels, alpha, beta, h, lam, p)
        assert gap <= model.tol
        if solver == "subspace":  # its bound by preconditioners is closer than that of the residual
            assert (upper - solve(kernels, beta, h, lam)[1]) / scale(objective, h) <= gap + 1e-9
        else:
            assert gap == pytest.approx((upper - lower) / scale(objective, h), rel=1e-3, abs=1e-10)
        assert objective == pytest.approx(value(kernels, alpha, beta, h, lam), rel=1e-9)
        assert lower - 2e-6 * abs(exact) <= exact <= upper + 2e-6 * abs(exact)
        assert objective == pytest.approx(exact, rel=1e-4)
        assert norm(beta, p) == pytest.approx(1.0)
        np.testing.assert_allclose(beta, expected, atol=3e-3 if lam < 1e-2 else 1e-3)
    read = sum(source.reads.values()) / (len(K) * len(K.view.tile_tasks()))
    if solver == "interleaved" or p > 1:  # a product omits kernels that have no weight for any task
        assert model.n_passes_ == pytest.approx(read)
    if solver in ("direct", "cg"):
        assert model.n_iter_ <= 8
    if solver == "dual":  # one pass a step, whatever the number of tasks, each tile once
        assert model.n_passes_ == model.n_iter_ == model.history_.passes.max()
        assert set(source.reads.values()) == {model.n_passes_}


@pytest.mark.parametrize("solver", ["dual", "interleaved"])
def test_memory_is_bounded(solver):
    K, labels = in_memory(few_digits()[0], 5), case("multiclass")[1]
    if solver == "dual":
        with dask.config.set({"dmkl.memory": "50kB"}):  # 11 directions in half of it
            model = dmkl.MKFDA(1.5, 1e-3, solver=solver).fit(K, labels)
        assert model.gap_ <= 1e-4
        assert model.objective_ == pytest.approx(best("multiclass", 1.5, 1e-3)[0][1], rel=1e-4)
    with dask.config.set({"dmkl.memory": "30kB"}), pytest.raises(MemoryBudgetError, match="solver='subspace'"):
        dmkl.MKFDA(1.5, 1e-3, solver=solver).fit(K, labels)


@pytest.mark.parametrize("solver", ["direct", "cg", "subspace"])
def test_one_kernel_has_the_weight_one(solver):
    kernels, labels, (h,) = case("multiclass")
    model = dmkl.MKFDA(1.0, 1e-2, solver=solver).fit(in_memory(few_digits()[0][:1], 20), labels)
    assert model.weights_.values.tolist() == [1.0]
    assert model.objective_ == pytest.approx(solve(kernels[:1], np.ones(1), h, 1e-2)[1], rel=1e-4)


@pytest.mark.parametrize(
    ("solver", "words"),
    [
        ("dual", "arithmetic resolves no more"),
        ("interleaved", "arithmetic resolves no more"),
        ("cg", "stopped shrinking"),
    ],
)
def test_a_tolerance_beyond_the_arithmetic_ends_by_itself(solver, words):
    K, labels = in_memory(few_digits()[0], 8), case("multiclass")[1]
    with pytest.warns(ConvergenceWarning, match=words):
        model = dmkl.MKFDA(2.0, 1e-3, solver=solver, tol=1e-30).fit(K, labels)
    assert model.gap_ < 1e-8


@pytest.mark.parametrize(("p", "mu"), [(1.0625, 0.1), (2.0, 1e-3), (np.inf, 10.0)])
def test_tikhonov_agrees_with_its_own_optimum(p, mu):
    kernels, labels, (h,) = case("multiclass")
    lam = 1e-2
    model = dmkl.MKFDA(p, lam, solver=dmkl.Dual(mu=mu), tol=1e-6).fit(in_memory(few_digits()[0], 20), labels)
    alpha, beta = model.dual_coef_.values, model.weights_.values
    rho = norm(beta, p)
    penalized = model.objective_ - lam * mu * rho**2
    bounded = [optimum(kernels, h, lam / r, p) - lam * mu * r**2 for r in (0.9 * rho, rho, 1.1 * rho)]
    assert penalized == pytest.approx(bounded[1], rel=1e-5)
    assert bounded[1] > max(bounded[0], bounded[2])
    # The returned bound is the one from the slopes of the solution, and the gap holds for both forms.
    dual_norm = norm(slopes(kernels, alpha, lam), conjugate(p))
    assert rho == pytest.approx(dual_norm / (2 * lam * mu), rel=1e-9)
    lower, _ = bounds(kernels, alpha, beta, h, lam, p)
    upper = 0.25 * np.sum(alpha**2) - np.sum(h * alpha) + dual_norm**2 / (4 * lam * mu)
    gap = (upper - (lower - lam * mu * rho**2)) / abs(model.objective_)
    assert model.gap_ == pytest.approx(gap, rel=1e-3, abs=1e-10)
    assert gap <= 1e-6


@pytest.mark.parametrize("solver", ["dual", dmkl.Dual(mu=1.0)])
def test_a_norm_without_gradient_is_refused(solver):
    with pytest.raises(InputError, match="p = 1; take solver='interleaved'"):
        dmkl.MKFDA(1.0, solver=solver).fit(in_memory(few_digits()[0], 20), few_digits()[1])


@pytest.mark.parametrize(
    ("p", "lam", "n_tasks", "solver"),
    [(2.0, 1.0, 1, "dual"), (1.0, 1.0, 1, "interleaved"), (2.0, 1e-3, 1, "subspace"), (2.0, 1.0, 2, "subspace")],
)
def test_auto_descends_on_the_dual_where_lambda_is_ample(p, lam, n_tasks, solver):
    """Tasks share a subspace."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 1200)
    kernels = [rbf_kernel(rng.standard_normal((1200, 5)) + s * y[:, None], gamma=0.1) for s in (0.0, 1.0)]
    labels = np.stack([y, 1 - y], axis=1) if n_tasks > 1 else y
    with dask.config.set({"dmkl.memory": "14MB"}):
        model = dmkl.MKFDA(p, lam).fit(in_memory(np.stack(kernels), 256), labels)
    assert model.solver_ == solver
    assert np.max(model.gap_) <= 1e-4


# --- products of tile columns ---------------------------------------------------------------------------------------
def test_problems_share_what_they_read():
    _, labels, _ = case("multilabel")
    K = in_memory(few_digits()[0], 8)
    together = dmkl.MKFDA(2.0, 1e-2, solver="interleaved").fit(K, labels)
    alone = [dmkl.MKFDA(2.0, 1e-2, solver="interleaved").fit(K, column) for column in labels.T]
    assert max(model.n_passes_ for model in alone) <= together.n_passes_ < sum(model.n_passes_ for model in alone)


SOME = (np.array([7, 1, 3, 0, 12, 5, 9]),) * 2


@pytest.mark.parametrize("steps", [(), ("center", "trace"), ("cosine", "center", SOME, "cosine", "center", "trace")])
def test_columns_and_blocks_of_any_view(steps):
    kernels, rows = psd(3, 31, seed=4), np.random.default_rng(5).permutation(31)[3:21]
    K, source = over(in_memory(kernels, 6), Counting)
    K = stepped(K[rows, rows], steps)
    expected = dense_view(kernels, rows, rows, steps)
    rng, lens = np.random.default_rng(1), K.lens()
    tiles = K.view.final_positions()[0] // 6
    index = np.flatnonzero(np.isin(tiles, tiles[[0, -1]]))
    v, beta = rng.standard_normal((len(index), 2)), np.array([0.7, 0.0, 0.4])
    source.reads.clear()
    (products, block), _ = drive([(lens, ask(r)) for r in (EachProduct(v, index), CombinedEntries(beta, index))])
    used = set(tiles[index].tolist())
    assert all(used & {i, j} for _, i, j in source.reads)
    assert error(products, expected[:, :, index] @ v) < 1e-12
    assert error(block[None], np.tensordot(beta, expected, 1)[index][:, index][None]) < 1e-12
