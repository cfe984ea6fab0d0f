"""Many targets by the factor of an anchor: against factors of their own, bounds against eigenvalues, far targets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics.pairwise import rbf_kernel

from dmkl.errors import IndefiniteKernelError
from dmkl.numerics.fisher import dual_norm
from dmkl.solvers.fisher import grid_in_memory
from dmkl.solvers.fisher.grid_in_memory import solve_grid
from dmkl.solvers.fisher.near_anchor import behind_anchor, spread
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


@pytest.mark.parametrize("tol", [1e-5, 1e-7])
def test_permuted_labels_come_out_as_with_factors_of_their_own(tol):
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
    narrow = [h @ np.linalg.svd(h)[2][:2].T for h in targets]
    turned, back = grid_in_memory._independent(targets)
    assert {h.shape[1] for h in turned} == {2}
    for h, t, q in zip(targets, turned, back, strict=True):
        np.testing.assert_allclose(t @ q, h, atol=1e-14)
    for few in (slice(0, 14), slice(0, 2)):
        check_proofs(K, wide[few], solve_grid(K, wide[few], POINTS[::3], 1e-5, 200, UNKNOWN))
        found = solve_grid(K, targets[few], POINTS[::3], 1e-6, 200, UNKNOWN)
        for one, other in zip(found, solve_grid(K, narrow[few], POINTS[::3], 1e-6, 200, UNKNOWN), strict=True):
            for point in one:
                assert one[point].objective == pytest.approx(other[point].objective, rel=2e-6)


def test_solutions_of_tiny_ridges_are_proven_of_the_next(monkeypatch):
    K, targets, asked = kernels(), permuted(14), []
    K[:, :M] += 1e-2 * (np.eye(M) - 1 / M)
    points = [(p, lam) for p in (1.0, 1.5) for lam in (1e-8, 1e-7, 1.0)]
    plain = grid_in_memory._Walk._beside

    def beside(walk, point, kernels, first, others):
        if others:
            asked.append(point)
        return plain(walk, point, kernels, first, others)

    monkeypatch.setattr(grid_in_memory._Walk, "_beside", beside)
    found = solve_grid(K, targets, points, 1e-5, 200, UNKNOWN)
    assert all(one.left <= 1e-5 for mine in found for one in mine.values())
    assert (1.5, 1e-8) in asked
    assert (1.5, 1.0) in asked
    assert (1.5, 1e-7) not in asked
    check_proofs(K, targets, found)


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


def nearly_the_same():
    """Kernels of two pairs of samples that hardly differ, each in what some kernels see more of."""
    x = np.random.default_rng(3).standard_normal((M + 10, 6))
    x[[0, 2]] = x[[1, 3]]
    x[0, 0] += 1e-3
    x[2, 5] += 1e-3
    return np.stack([centered(rbf_kernel(x * np.r_[a, 1, 1, 1, 1, b], gamma=0.3)) for a, b in ((1, 1), (3, 1), (1, 3))])


def test_targets_are_alike_whose_nearly_equal_samples_share_a_label_or_not(monkeypatch):
    K, rng = nearly_the_same(), np.random.default_rng(4)
    labels = [rng.permutation(np.arange(M) % 3) for _ in range(60)]
    targets = [np.eye(3)[y] - 1 / 3 for y in labels]
    same = np.array([[y[0] == y[1], y[2] == y[3]] for y in labels])
    grouped, own = [], []
    plain, factors = grid_in_memory.alike, grid_in_memory.OwnFactors._evaluate
    monkeypatch.setattr(grid_in_memory, "alike", lambda *given: grouped.append(plain(*given)) or grouped[-1])
    monkeypatch.setattr(
        grid_in_memory.OwnFactors,
        "_evaluate",
        lambda at, betas, *given: own.append(len(betas)) or factors(at, betas, *given),
    )
    points = [(1.25, 1e-8)]
    found = solve_grid(K, targets, points, 1e-5, 200, UNKNOWN)
    check_proofs(K, targets, found)
    assert all(mine[points[0]].left <= 1e-5 for mine in found)
    (groups,) = grouped
    assert sorted(t for group in groups for t in group) == list(range(60))
    large = [group for group in groups if len(group) >= 4]
    assert len(large) == 4
    assert all((same[group] == same[group[0]]).all() for group in large)
    assert sum(own) < 60


@given(seed=st.integers(0, 1000), p=st.sampled_from([1.0, 1.5, 3.0, np.inf]))
def test_groups_hold_each_target_once_and_depend_on_no_scale(seed, p):
    rng = np.random.default_rng(seed)
    slopes = np.exp(rng.normal(size=(30, 5)) * 0.05 + rng.normal(size=(3, 5))[rng.integers(0, 3, 30)])
    groups = grid_in_memory.alike(slopes, p)
    assert sorted(t for group in groups for t in group) == list(range(30))
    assert grid_in_memory.alike(slopes * rng.uniform(0.1, 10.0, (30, 1)), p) == groups
    if np.isinf(p):
        assert len(groups) == 1


def test_a_target_of_nothing_is_in_a_group_too():
    slopes = np.concatenate([np.ones((5, 3)), np.zeros((1, 3))])
    assert sorted(t for group in grid_in_memory.alike(slopes, 1.5) for t in group) == list(range(6))


class Rounded:
    """A target whose second weighting is proven, and looks lower than the first by rounding."""

    p, lost = 1.0, frozenset()

    def __init__(self):
        self.asked = 0

    def evaluate(self, betas, which):
        self.asked += 1
        upper, objective = (-1.0 + 1e-3, -1.0) if self.asked == 1 else (-1.0, -1.0 - 1e-7)
        return [grid_in_memory.Solved(beta, np.array([2.0, 1.0]), objective, upper, 0.0, 1.0, None) for beta in betas]

    def told(self, one, t):
        return one


def test_what_is_proven_is_taken_though_rounding_hides_that_it_rose():
    at, curvature = Rounded(), np.eye(2)[None]
    limits = grid_in_memory._Limits(1e-5, 50)
    (one,), _ = grid_in_memory._solve_point(at, [0], np.array([[0.5, 0.5]]), limits, curvature)
    assert at.asked == 2
    assert one.left <= 1e-5


def test_kernels_that_are_not_semidefinite_are_refused():
    K = kernels()
    K[2, :M] -= 0.5 * np.eye(M)
    with pytest.raises(IndefiniteKernelError):
        solve_grid(K, permuted(14), [(2.0, 1e-3)], 1e-5, 50, UNKNOWN)


DRAWN = {"lam": st.sampled_from([1e-6, 1e-3, 0.1, 10.0]), "size": st.sampled_from([1e-3, 0.1, 2.0])}


def drawn(rng, lam, size):
    """Kernels, weights of an anchor, some of them zero, a change of them that leaves none negative, and M̄."""
    square = kernels()[:, :M]
    beta = rng.uniform(0, 1, 6) * rng.integers(0, 2, 6)
    change = np.maximum(beta + size * rng.standard_normal(6), 0.0) - beta
    return square, beta, change, 0.5 * (np.eye(M) + np.tensordot(beta, square, 1) / lam)


@given(seed=st.integers(0, 1000), **DRAWN)
def test_what_the_solution_of_an_anchor_leaves_is_bounded(seed, lam, size):
    rng = np.random.default_rng(seed)
    square, beta, change, anchor = drawn(rng, lam, size)
    alpha = np.linalg.solve(anchor, rng.standard_normal((M, 2)))
    residual = np.tensordot(change, square, 1) @ alpha / (2 * lam)
    slopes = np.einsum("mc,nmk,kc->n", alpha, square, alpha) / (4 * lam)
    left = 0.5 * np.sum(residual * np.linalg.solve(anchor, residual))
    (bound,) = behind_anchor(change[None], beta, slopes[None], np.linalg.norm(square, axis=(1, 2)) / lam)
    assert left <= bound * (1 + 1e-6)
    # Kernels that all change alike leave what the bound says, but for the part of the unit matrix.
    (alike,) = behind_anchor(0.1 * beta[None], beta, slopes[None], np.linalg.norm(square, axis=(1, 2)) / lam)
    assert alike <= 0.01 * beta @ slopes * (1 + 1e-6)


@given(seed=st.integers(0, 1000), **DRAWN)
def test_the_spread_bounds_the_eigenvalues(seed, lam, size):
    rng = np.random.default_rng(seed)
    square, beta, change, anchor = drawn(rng, lam, size)
    inverse = np.linalg.inv(np.linalg.cholesky(anchor))
    moved = np.tensordot(change / (2 * lam), square, 1)
    values = np.linalg.eigvalsh(inverse @ moved @ inverse.T)
    # The eigenvalues of small ridges come out of large terms that cancel, and have the rounding of those.
    rounding = M * np.finfo(float).eps * np.linalg.norm(moved, 2) * np.linalg.norm(inverse, 2) ** 2
    norms = np.linalg.norm(square, axis=(1, 2)) / lam
    assert np.abs(values).max() <= spread(change[None], beta, norms)[0] * (1 + 1e-9) + rounding
    assert -values.min() <= spread(np.minimum(change, 0.0)[None], beta, norms)[0] * (1 + 1e-9) + rounding
