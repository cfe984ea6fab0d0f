"""Many targets by factors that they share: against factors of their own, bounds against eigenvalues, far targets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics.pairwise import rbf_kernel

from dmkl.errors import IndefiniteKernelError
from dmkl.numerics.fisher import dual_norm, onto_sphere
from dmkl.solvers.fisher import centers, grid_in_memory
from dmkl.solvers.fisher.centers import Centers, grouped, spread
from dmkl.solvers.fisher.grid_in_memory import solve_grid
from dmkl.solvers.fisher.kernels_in_memory import KernelStack, Solved
from dmkl.solvers.fisher.weightings import Limits, Place, alike, expected, foretold, halfway, solve_point, start
from dmkl.solvers.fisher.whitened import Whitened
from dmkl.solvers.semidefinite import UNKNOWN

M = 45
POINTS = [(p, lam) for p in (1.0, 1 + 2**-6, 1.5, 4.0, np.inf) for lam in (1e-8, 1e-4, 1e-2, 1.0)]


def kernels(rows=M + 10):
    """Centred kernels of unit trace over the training rows, the held-out ones below."""
    x = np.random.default_rng(0).standard_normal((rows, 6))
    return np.stack([centered(rbf_kernel(part, gamma=g)) for g in (0.05, 0.3, 2.0) for part in (x, x[:, :2])])


def centered(K):
    train, center = K[:M, :M], np.eye(M) - 1 / M
    K = np.concatenate([center @ train @ center, (K[M:, :M] - train.mean(axis=0)) @ center])
    return K / np.trace(K[:M])


def permuted(n, seed=1):
    rng = np.random.default_rng(seed)
    labels = np.arange(M) % 3
    return [np.eye(3)[rng.permutation(labels)] - 1 / 3 for _ in range(n)]


@pytest.mark.parametrize(("tol", "worth"), [(1e-5, 1), (1e-5, 50), (1e-7, 50)])
def test_permuted_labels_come_out_as_with_factors_of_their_own(tol, worth, monkeypatch):
    monkeypatch.setattr(centers, "_WORTH", worth)  # of so many targets centers are inverted
    K, targets = kernels(), permuted(14)
    many = solve_grid(K, targets, POINTS, tol, 200, UNKNOWN)
    alone = [solve_grid(K, [h], POINTS, 1e-8, 200, UNKNOWN)[0] for h in targets]
    for mine, own in zip(many, alone, strict=True):
        for point in POINTS:
            one, other = mine[point], own[point]
            assert one.left <= tol
            part = tol * other.share * abs(other.objective)
            assert abs(one.objective - other.objective) <= 2.0 * part
            np.testing.assert_allclose(one.scores, other.scores, atol=20.0 * np.sqrt(tol) * np.abs(other.scores).max())


def check_proofs(K, targets, found):
    """What came back, and what is said of it, against dense arithmetic in double precision."""
    square = K[:, :M]
    for h, mine in zip(targets, found, strict=True):
        for (p, lam), one in mine.items():
            system = 0.5 * (np.eye(M) + np.tensordot(one.beta, square, 1) / lam)
            q = np.einsum("mc,nmk,kc->n", one.alpha, square, one.alpha) / (4 * lam)
            linear = 0.25 * np.sum(one.alpha**2) - np.sum(h * one.alpha)
            rounding = 2e-5 * one.beta @ q
            assert one.objective == pytest.approx(linear + one.beta @ q, abs=rounding)
            assert one.upper == pytest.approx(linear + dual_norm(q, p), abs=rounding)
            residual = h - system @ one.alpha
            excess = 0.5 * np.sum(residual * np.linalg.solve(system, residual))
            assert excess <= one.excess + 1e-2 * rounding
            scores = np.tensordot(one.beta, K[:, M:], 1) @ one.alpha
            np.testing.assert_allclose(one.scores, scores, atol=2e-5 * np.abs(scores).max())


def test_what_is_proven_holds_for_the_pairs_that_come_back():
    K, targets = kernels(), permuted(14)
    check_proofs(K, targets, solve_grid(K, targets, POINTS, 1e-5, 200, UNKNOWN))


def test_what_is_proven_of_targets_in_tiny_units_holds_too():
    K, targets = kernels(), [1e-18 * h for h in permuted(14)]
    check_proofs(K, targets, solve_grid(K, targets, POINTS, 1e-5, 200, UNKNOWN))


def test_columns_that_depend_on_one_another_cost_nothing_and_change_nothing():
    K, targets = kernels(), permuted(14)
    rng = np.random.default_rng(2)
    wide = [h @ rng.standard_normal((3, 5)) for h in targets]
    jumps = POINTS[::3]  # from p = ∞ to 1 + 2⁻⁶ at once, too far for a model of the slopes
    narrow = [h @ np.linalg.svd(h)[2][:2].T for h in targets]
    turned, back, scales = grid_in_memory._independent(targets)
    assert {h.shape[1] for h in turned} == {2}
    for h, t, q, scale in zip(targets, turned, back, scales, strict=True):
        np.testing.assert_allclose(t @ q, h, atol=1e-14)
        np.testing.assert_allclose(q @ q.T, scale**2 * np.eye(2), rtol=1e-12, atol=1e-12 * scale**2)
    for few in (slice(0, 14), slice(0, 2)):
        check_proofs(K, wide[few], solve_grid(K, wide[few], jumps, 1e-5, 200, UNKNOWN))
        found = solve_grid(K, targets[few], jumps, 1e-6, 200, UNKNOWN)
        for one, other in zip(found, solve_grid(K, narrow[few], jumps, 1e-6, 200, UNKNOWN), strict=True):
            for point in one:
                assert one[point].objective == pytest.approx(other[point].objective, rel=2e-6)


def test_targets_that_are_unlike_the_others_get_factors_of_their_own(monkeypatch):
    K, targets = kernels(), permuted(14)
    values, vectors = np.linalg.eigh(K[1, :M])
    targets[0] = vectors[:, -2:] * np.sqrt(values[-2:])
    targets[0] = np.concatenate([targets[0], np.zeros((M, 1))], axis=1)
    monkeypatch.setattr(grid_in_memory, "_NEAR_STEPS", 1)
    found = solve_grid(K, targets, POINTS, 1e-7, 200, UNKNOWN)
    (own,) = solve_grid(K, targets[:1], POINTS, 1e-9, 200, UNKNOWN)
    for point in POINTS:
        assert found[0][point].left <= 1e-7
        scale = own[point].share * abs(own[point].objective)
        assert found[0][point].objective == pytest.approx(own[point].objective, abs=2e-7 * scale)


class Rounded:
    """A target whose second weighting is proven, and looks lower than the first by rounding."""

    p, lost = 1.0, frozenset()

    def __init__(self):
        self.asked = 0

    def evaluate(self, betas, which):
        self.asked += 1
        upper, objective = (-1.0 + 1e-3, -1.0) if self.asked == 1 else (-1.0, -1.0 - 1e-7)
        return [Solved(beta, np.array([2.0, 1.0]), objective, upper, 0.0, 1.0, None) for beta in betas]

    def told(self, one, t):
        return one


def test_what_is_proven_is_taken_though_rounding_hides_that_it_rose():
    at, curvature = Rounded(), np.eye(2)[None]
    limits = Limits(1e-5, 50)
    (one,), _ = solve_point(at, [0], np.array([[0.5, 0.5]]), limits, curvature)
    assert at.asked == 2
    assert one.left <= 1e-5


def test_kernels_that_are_not_semidefinite_are_refused():
    K = kernels()
    K[2, :M] -= 0.5 * np.eye(M)
    with pytest.raises(IndefiniteKernelError):
        solve_grid(K, permuted(14), [(2.0, 1e-3)], 1e-5, 50, UNKNOWN)


DRAWN = {"lam": st.sampled_from([1e-6, 1e-3, 0.1, 10.0]), "size": st.sampled_from([1e-3, 0.1, 2.0])}


def drawn(rng, lam, size):
    """Kernels, weights of a center, some of them zero, a change of them that leaves none negative, and M̄."""
    square = kernels()[:, :M]
    beta = rng.uniform(0, 1, 6) * rng.integers(0, 2, 6)
    change = np.maximum(beta + size * rng.standard_normal(6), 0.0) - beta
    return square, beta, change, 0.5 * (np.eye(M) + np.tensordot(beta, square, 1) / lam)


@given(seed=st.integers(0, 1000), **DRAWN)
def test_the_spread_bounds_the_eigenvalues(seed, lam, size):
    rng = np.random.default_rng(seed)
    square, beta, change, center = drawn(rng, lam, size)
    inverse = np.linalg.inv(np.linalg.cholesky(center))
    moved = np.tensordot(change / (2 * lam), square, 1)
    values = np.linalg.eigvalsh(inverse @ moved @ inverse.T)
    # The eigenvalues of small ridges come out of large terms that cancel, and have the rounding of those.
    rounding = M * np.finfo(float).eps * np.linalg.norm(moved, 2) * np.linalg.norm(inverse, 2) ** 2
    norms = np.linalg.norm(square, axis=(1, 2)) / lam  # I ⪯ 2M̄
    assert np.abs(values).max() <= spread(change[None], beta, norms)[0] * (1 + 1e-9) + rounding
    assert -values.min() <= spread(np.minimum(change, 0.0)[None], beta, norms)[0] * (1 + 1e-9) + rounding


def whitened(lam, dtype=np.float64, n=14):
    """Targets in the coordinates of equal weights, with the factor L of M̄ beside them."""
    stack, targets = KernelStack(kernels(), UNKNOWN, 4), np.stack([h.T for h in permuted(n)])
    root = np.linalg.cholesky(0.5 * (np.eye(M) + np.sum(kernels()[:, :M], axis=0) / lam))
    return Whitened(stack, targets, lam, np.ones(6), dtype), root


@pytest.mark.parametrize("lam", [1e-6, 1e-2, 10.0])
def test_coordinates_are_those_of_the_factor(lam):
    white, root = whitened(lam)
    K, beta = kernels(), np.random.default_rng(0).uniform(0, 2, 6)
    whole = np.linalg.inv(root) @ (0.5 * (np.eye(M) + np.tensordot(beta, K[:, :M], 1) / lam)) @ np.linalg.inv(root).T
    np.testing.assert_allclose(white.system(beta), whole, atol=1e-8)
    np.testing.assert_allclose(white.h[3], np.linalg.solve(root, white.targets[3].T).T, atol=1e-8)
    alphas = white.alphas([1, 3])
    np.testing.assert_allclose(root.T @ alphas[1].T, white.x[3].T, rtol=1e-6, atol=1e-8)
    white.place(5, alphas[1].T)
    np.testing.assert_allclose(white.x[5], white.x[3], rtol=1e-6, atol=1e-8)
    scores = np.tensordot(beta, K[:, M:], 1) @ alphas[1].T
    np.testing.assert_allclose(white.scores(beta[None], [3])[0].T, scores, atol=1e-8 * np.abs(scores).max())


@pytest.mark.parametrize("lam", [1e-6, 1e-2, 10.0])
def test_the_curvature_is_minus_the_derivative_of_the_slopes(lam):
    white, _ = whitened(lam)
    square, beta, h = kernels()[:, :M], np.random.default_rng(0).uniform(0.2, 1, 6), white.targets[0].T

    def slopes(beta):
        alpha = np.linalg.solve(0.5 * (np.eye(M) + np.tensordot(beta, square, 1) / lam), h)
        return alpha, np.einsum("mc,nmk,kc->n", alpha, square, alpha) / (4 * lam)

    white.place(0, slopes(beta)[0])
    step = 1e-4 * np.eye(6) * beta
    known = np.stack([(slopes(beta - e)[1] - slopes(beta + e)[1]) / (2 * e.sum()) for e in step], axis=1)
    np.testing.assert_allclose(white.curvature(beta, 0), known, rtol=1e-4, atol=1e-5 * np.abs(known).max())


@given(seed=st.integers(0, 1000), lam=st.sampled_from([1e-6, 1e-3, 1.0]), size=st.sampled_from([0.05, 0.5, 3.0]))
def test_bounds_are_those_of_the_eigenvalues(seed, lam, size):
    """μW̄ ⪯ W ⪯ νW̄ of every target by dense eigenvalues, weights that are zero and far ones among them."""
    rng = np.random.default_rng(seed)
    white, _ = whitened(lam, n=45)
    white.slopes[:] = 1.0
    weights = np.exp(size * rng.standard_normal((45, 6))) * (rng.uniform(size=(45, 6)) > 0.2)
    weights[:, 0] += 1e-3
    near = Centers(white, weights)
    least, most = near.bounds(weights, np.arange(45))
    label, found = grouped(weights, white.slopes, white.sizes)
    for t, (low, high) in enumerate(zip(least, most, strict=True)):
        inverse = np.linalg.inv(np.linalg.cholesky(white.system(found[label[t]])))
        values = np.linalg.eigvalsh(inverse @ white.system(weights[t]) @ inverse.T)
        assert low <= values[0] * (1 + 1e-6) + 1e-7
        assert high >= values[-1] * (1 - 1e-6) - 1e-7


def test_few_targets_have_no_bound_that_is_of_no_use():
    """Weights that come near zero where those of the center are not: the factor tells what ratios do not."""
    white, _ = whitened(1e-3, n=30)
    white.slopes[:] = 1.0
    weights = np.ones((30, 6))
    weights[::2, 1] = 0.0
    near = Centers(white, weights)
    least, _ = near.bounds(weights, np.arange(30))
    assert np.all(least > 0.01)


@given(seed=st.integers(0, 1000), n=st.integers(1, 90))
def test_centers_are_means_of_groups_about_one_of_them(seed, n):
    rng = np.random.default_rng(seed)
    weights = np.exp(rng.normal(size=(3, 4)))[rng.integers(0, 3, n)] * np.exp(0.01 * rng.normal(size=(n, 4)))
    slopes = np.exp(0.1 * rng.normal(size=(n, 4)))
    sizes = np.sum(weights * slopes, axis=1)
    label, found = grouped(weights, slopes, sizes)
    assert label.shape == (n,)
    assert 1 <= len(found) <= max(1, n // 20)
    assert set(label.tolist()) == set(range(len(found)))
    for k, center in enumerate(found):
        np.testing.assert_allclose(center, weights[label == k].mean(axis=0))
    # Unless there are as many as may be, one of a group is near all of it.
    apart = np.sum(np.abs(weights[:, None] - weights) * (slopes / sizes[:, None])[:, None], axis=2)
    for k in range(len(found)):
        mine = label == k
        assert len(found) == max(1, n // 20) or apart[np.ix_(mine, mine)].max(axis=0).min() <= 0.2


def test_targets_of_nothing_have_a_center_too():
    label, found = grouped(np.ones((5, 3)), np.zeros((5, 3)), np.zeros(5))
    assert label.tolist() == [0] * 5
    np.testing.assert_array_equal(found, np.ones((1, 3)))


@pytest.mark.parametrize("p", [1.0, 1.25])
def test_targets_are_expected_to_go_on_as_they_went_as_far_as_suits_the_pilot(p):
    rng = np.random.default_rng(0)
    shift, size = 0.1 * rng.normal(size=(2, 4)), rng.uniform(0.5, 1.5, 6)
    shift -= shift.mean(axis=1, keepdims=True)

    def at(s, t):
        way = shift[0] * s * size[t]
        beta = 0.25 + 0.1 * way if p == 1 else np.exp(way) / np.sum(np.exp(p * way)) ** (1 / p)
        return Place(beta, np.exp(shift[1] * s * size[t]))

    before, last, now = ([at(s, t) for t in range(6)] for s in (1.0, 2.0, 3.0))
    for one, known in zip(expected(last, before, 2, now[2], p), now, strict=True):
        # The same ways, but for what weights on the sphere share.
        np.testing.assert_allclose(one.beta, known.beta, rtol=1e-10 if p == 1 else 2e-3)
        np.testing.assert_allclose(one.slopes, known.slopes, rtol=2e-3)
    alone = expected(last, last, 2, now[2], p)
    np.testing.assert_allclose(alone[2].beta, now[2].beta)
    np.testing.assert_allclose(alone[2].slopes, now[2].slopes)
    np.testing.assert_allclose(alone[0].slopes, last[0].slopes * now[2].slopes / last[2].slopes)


@pytest.mark.parametrize(("tol", "double"), [(1e-5, False), (1e-9, True)])
def test_tight_tolerances_are_reached_in_double_precision(tol, double, monkeypatch):
    asked, plain = [], Whitened.doubled
    monkeypatch.setattr(Whitened, "doubled", lambda white: asked.append(white.lam) or plain(white))
    K, targets, points = kernels(), permuted(14), [(p, lam) for p in (1.0, 1.5) for lam in (1e-3, 1.0)]
    found = solve_grid(K, targets, points, tol, 200, UNKNOWN)
    assert all(one.left <= tol for mine in found for one in mine.values())
    assert (asked == [1e-3, 1.0]) is double
    check_proofs(K, targets, found)


def test_hardly_a_target_of_labels_that_are_alike_is_solved_by_factors_of_its_own(monkeypatch):
    asked, plain = [], grid_in_memory.OwnFactors.evaluate
    monkeypatch.setattr(
        grid_in_memory.OwnFactors,
        "evaluate",
        lambda at, betas, which: asked.extend(which) or plain(at, betas, which),
    )
    found = solve_grid(kernels(), permuted(60), POINTS, 1e-5, 200, UNKNOWN)
    assert all(one.left <= 1e-5 for mine in found for one in mine.values())
    assert len(asked) < 0.1 * 60 * len(POINTS)


def nearly_the_same():
    """Kernels of two pairs of samples that hardly differ, each in what some kernels see more of."""
    x = np.random.default_rng(3).standard_normal((M + 10, 6))
    x[[0, 2]] = x[[1, 3]]
    x[0, 0] += 1e-3
    x[2, 5] += 1e-3
    return np.stack([centered(rbf_kernel(x * np.r_[a, 1, 1, 1, 1, b], gamma=0.3)) for a, b in ((1, 1), (3, 1), (1, 3))])


def test_targets_whose_nearly_equal_samples_share_a_label_or_not_are_solved_together():
    K, rng = nearly_the_same(), np.random.default_rng(4)
    targets = [np.eye(3)[rng.permutation(np.arange(M) % 3)] - 1 / 3 for _ in range(60)]
    points = [(p, 1e-8) for p in (1.0, 1.25, 2.0)]
    found = solve_grid(K, targets, points, 1e-5, 200, UNKNOWN)
    assert all(one.left <= 1e-5 for mine in found for one in mine.values())
    check_proofs(K, targets, found)


def test_rounding_is_told_from_kernels_that_are_not_semidefinite():
    white, _ = whitened(1e-3)
    with pytest.raises(np.linalg.LinAlgError):
        white.factor(np.ones(6), -np.eye(M))
    white.stack.kernels[1, :M] -= 0.5 * np.eye(M)
    white.stack.packed[:] = KernelStack(white.stack.kernels, UNKNOWN, 4).packed
    with pytest.raises(IndefiniteKernelError):
        white.factor(np.ones(6), -np.eye(M))


def test_a_factor_that_rounding_hides_is_made_in_double_precision(monkeypatch):
    plain = Whitened.factor

    def factor(white, beta, system):
        if white.dtype == np.float32:
            raise np.linalg.LinAlgError
        return plain(white, beta, system)

    monkeypatch.setattr(Whitened, "factor", factor)
    K, targets, points = kernels(), permuted(14), [(p, 1e-2) for p in (1.0, 1.5, np.inf)]
    found = solve_grid(K, targets, points, 1e-5, 200, UNKNOWN)
    assert all(one.left <= 1e-5 for mine in found for one in mine.values())
    check_proofs(K, targets, found)


def test_a_model_that_errs_for_all_alike_foretells_where_they_are():
    """All targets have the pilot's slopes and curvature, and end where it ends, not where the model has them."""
    rng = np.random.default_rng(0)
    root, last = rng.standard_normal((6, 6)), Place(np.ones(6) / 6, rng.uniform(0.5, 1.0, 6))
    now = Place(onto_sphere(rng.uniform(0.1, 1.0, 6), 1.1), last.slopes)
    curvature = root @ root.T
    model = start([last], alike([last], curvature, last), 1.1)
    found = foretold([last] * 3, curvature, 1, now, 1.1)
    np.testing.assert_allclose(found, [now.beta] * 3)
    assert np.abs(model - now.beta).max() > 0.01
    between = halfway(model, found[:1], 1.1)[0]
    np.testing.assert_allclose(between / between[0], np.sqrt(model[0] * now.beta / (model[0, 0] * now.beta[0])))
