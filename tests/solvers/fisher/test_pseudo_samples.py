"""MK-FDA on kernels with factors against the same kernels as matrices, through fits and searches."""

import os
import signal

import dask
import numpy as np
import pytest
from helpers.faults import revived_workers
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import dmkl
from dmkl.errors import ConstantKernelWarning, InputError


def sets(seed, m, widths, n_classes=3, mean=1.0):
    """A set that is computed from features, and the same kernels as matrices in float64."""
    rng = np.random.default_rng(seed)
    y = np.arange(m) % n_classes
    tables = {f"t{j}": rng.normal(size=(m, d)) + mean for j, d in enumerate(widths)}
    tables["t0"] += 0.8 * rng.normal(size=(n_classes, widths[0]))[y]
    K = dmkl.build(None, tables, {"function": "linear"}, labels=y)
    kernels = {name: table @ table.T for name, table in zip(K.names, tables.values(), strict=True)}
    return K, dmkl.create(None, kernels, labels=y)


@pytest.mark.parametrize(
    ("widths", "p", "lam"),  # D below, equal to and above m
    [((3, 5, 2), 1, 1e-8), ((3, 5, 2), 1.5, 1e-4), ((20, 20), np.inf, 1e-1), ((40, 30, 1), 1, 10)],
)
def test_models_are_those_of_the_matrices(widths, p, lam):
    K, dense = sets(0, 60 if widths[0] == 3 else 45, widths)
    new = np.arange(1, len(K.samples), 9)
    train = np.setdiff1d(np.arange(len(K.samples)), new)
    # A gap is a difference of terms whose rounding, 1e-16 of the trace, is divided by λ.
    tol = 1e-11 if lam > 1e-8 else 1e-9
    model, expected = (dmkl.MKFDA(p, lam, tol=tol).fit(S[train, train], S.labels[train]) for S in (K, dense))
    assert model.solver_ == ("factors" if sum(widths) < len(train) else "direct")
    assert model.gap_ <= max(tol, 1e-10)
    assert model.objective_ == pytest.approx(expected.objective_, rel=1e-9)
    # Rounding of the matrices is 1e-16 of the trace, and both weights and scores divide it by λ.
    if lam > 1e-8:
        np.testing.assert_allclose(model.weights_, expected.weights_, atol=1e-6)
    scores = expected.decision_function(dense[new, train]).values
    atol = (1e-8 if lam > 1e-8 else 1e-7) * np.abs(scores).max()
    np.testing.assert_allclose(model.decision_function(K[new, train]), scores, atol=atol)


@pytest.mark.parametrize("steps", [("trace",), ("cosine",), ("center", "trace")])
def test_decisions_are_those_of_the_matrices(steps):
    """Their rules are learnt from leave-one-out scores, for which kernels that are not centered take A⁻¹1 too."""
    K, dense = sets(0, 60, (3, 5, 2))
    train, new, weights = np.arange(45), np.arange(45, 60), np.random.default_rng(0).uniform(0.5, 2.0, 45)
    fits = [dmkl.MKFDA(1.5, 0.03, steps=steps, tol=1e-10).fit(S[train, train], None, weights) for S in (K, dense)]
    assert [model.solver_ for model in fits] == ["factors", "direct"]
    (chances, expected) = (model.predict_proba(S[new, train]).values for model, S in zip(fits, (K, dense), strict=True))
    np.testing.assert_allclose(chances, expected, atol=1e-6)


@settings(deadline=None, max_examples=6, phases=[Phase.generate])
@given(
    st.integers(0, 2**16),
    st.lists(st.integers(1, 5), min_size=1, max_size=4),
    st.floats(-5, 1),
    st.sampled_from([1, 1.0625, 1.5, 2, 8, np.inf]),
    st.sampled_from([("center", "trace"), ("cosine", "center"), ("center", "multiplicative")]),
)
@pytest.mark.filterwarnings("ignore::dmkl.errors.ConstantKernelWarning")
def test_objectives_gaps_and_scores_of_any_set(seed, widths, log_lam, p, steps):
    K, dense = sets(seed, 40, [2 + widths[0], *widths[1:]], mean=10.0)  # a mean that centering has to remove
    weights = np.random.default_rng(seed).uniform(0.5, 2.0, 40) if seed % 2 else None
    how = {"p": p, "lam": 10.0**log_lam, "steps": steps}
    model = dmkl.MKFDA(**how, tol=1e-2).fit(K, sample_weight=weights)
    expected = dmkl.MKFDA(**how, tol=1e-10).fit(dense, sample_weight=weights)
    assert model.solver_ == "factors"
    scale = abs(expected.objective_)
    assert model.objective_ - 1e-8 * scale <= expected.objective_ <= model.objective_ + (model.gap_ + 1e-8) * scale
    # The scores are those of the regression at the learnt weights.
    at_weights = dmkl.MKFDA(**how, tol=1e-10, weights=model.weights_.to_series().to_dict()).fit(
        dense, sample_weight=weights
    )
    scores = at_weights.decision_function(dense).values
    np.testing.assert_allclose(model.decision_function(K), scores, atol=1e-7 * np.abs(scores).max())


@pytest.mark.slow
def test_folds_share_sums_and_repeated_rows_do_not():
    K, dense = sets(3, 90, (4, 3), mean=5.0)
    grid = {"p": [1, 2], "lam": [1e-3, 1.0]}
    for learner in (dmkl.MKFDA(), dmkl.MKFDA(decision="largest"), dmkl.MKFDA(steps=("cosine", "center"))):
        result, expected = (dmkl.search(learner, S, grid=grid, cv=3, baselines="none", refit=False) for S in (K, dense))
        np.testing.assert_allclose(result.scores.objective, expected.scores.objective, rtol=2e-4)
        np.testing.assert_allclose(result.scores.score, expected.scores.score, atol=0.034)  # one row of a fold
    rows = np.random.default_rng(0).integers(0, 90, 120)
    model, expected = (dmkl.MKFDA(tol=1e-9).fit(S[rows, rows], S.labels[rows]) for S in (K, dense))
    np.testing.assert_allclose(model.weights_, expected.weights_, atol=1e-5)


def test_permutations_are_solved_together():
    K, dense = sets(4, 60, (4, 3))
    how = {"grid": {"lam": [0.1]}, "n_permutations": 19, "cv": 3}
    test, expected = (dmkl.permutation_test(dmkl.MKFDA(), S, **how) for S in (K, dense))
    np.testing.assert_allclose(test.data.null_score, expected.data.null_score, atol=1e-12)


def test_repeated_constant_and_missing_components():
    rng = np.random.default_rng(1)
    y = np.arange(40) % 2
    Z = rng.normal(size=(40, 3)) + y[:, None]
    tables = {"twice": np.hstack([Z, Z, np.full((40, 2), 3.0)]), "other": rng.normal(size=(40, 2))}
    K = dmkl.build(None, tables, {"function": "linear"}, labels=y)
    dense = dmkl.create(None, {n: t @ t.T for n, t in zip(K.names, tables.values(), strict=True)}, labels=y)
    model, expected = (dmkl.MKFDA(lam=1e-3, tol=1e-9).fit(S) for S in (K, dense))
    np.testing.assert_allclose(model.weights_, expected.weights_, atol=1e-6)
    constant = dmkl.build(None, {**tables, "constant": np.full((40, 2), 1e3)}, {"function": "linear"}, labels=y)
    with pytest.warns(ConstantKernelWarning, match="'constant-linear'"):
        weights = dmkl.MKFDA().fit(constant).weights_
    np.testing.assert_allclose(weights, [*dmkl.MKFDA().fit(K).weights_.values, 0.0], rtol=1e-12)
    zero = dmkl.build(None, {"zero": Z * (np.arange(40) != 7)[:, None]}, {"function": "linear"}, labels=y)
    with pytest.raises(InputError, match=r"'zero-linear' has 0 at sample '7'"):
        dmkl.MKFDA(steps=("cosine", "center")).fit(zero)


def test_a_ridge_below_the_rounding_of_the_sums_is_refused():
    K, _ = sets(5, 60, (4, 3))
    with pytest.raises(InputError, match=r"lam=1e-17 is below what sums in double precision resolve"):
        dmkl.MKFDA(lam=1e-17).fit(K)


class KillingFactors:
    """Factors of which the first read of the last rows kills the worker."""

    def __init__(self, factors, file):
        self.factors, self.widths, self.chunk_rows, self.file = factors, factors.widths, factors.chunk_rows, file

    def read(self, kernels, axis, rows):
        if rows.stop == 90 and self.file.exists():
            self.file.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return self.factors.read(kernels, axis, rows)


@pytest.mark.slow
def test_a_worker_killed_in_a_pass_changes_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("dmkl.passes.view._SMALLEST", 1024)  # several tasks
    K, _ = sets(6, 90, (4, 3))
    how = {"grid": {"p": [1, 2], "lam": [1e-3, 1.0]}, "cv": 3, "refit": False}
    expected = dmkl.search(dmkl.MKFDA(), K, **how)
    K.view.source.factors = KillingFactors(K.view.source.factors, tmp_path / "one death")
    (tmp_path / "one death").touch()
    with dask.config.set({"distributed.scheduler.allowed-failures": 3}), revived_workers(2):
        result = dmkl.search(dmkl.MKFDA(), K, **how)
    assert not (tmp_path / "one death").exists()
    for name in ("score", "objective", "weight"):
        np.testing.assert_allclose(result.scores[name], expected.scores[name], rtol=1e-9)
