"""Searches over several chains of steps, each with its own values of λ."""

import numpy as np
import pytest
from helpers.references import in_memory

import dmkl
from dmkl.searching.grid import CHAINS, LAM_COSINE, LAM_TRACE, second_chain

BOTH = ["center+trace", "cosine+center"]
M = 36


def unlike(dtype="float32"):
    """Two linear kernels of samples with different norms, a Gaussian kernel (unit diagonal), and two classes."""
    rng = np.random.default_rng(0)
    y = np.arange(M) % 2
    X = (rng.standard_normal((M, 6)) + 2 * np.eye(2, 6)[y]) * np.exp(0.7 * rng.standard_normal((M, 1)))
    Y = rng.standard_normal((M, 5))
    squares = ((X[:, None] - X[None]) ** 2).sum(axis=-1)
    return np.array([X @ X.T, Y @ Y.T, np.exp(-squares / 24)]).astype(dtype), y


def values(result, chain, name):
    """A variable at the fitted points of one chain, (lam, fold …)."""
    return result.scores[name].isel(p=0, drop=True).sel(steps=chain, drop=True).dropna("lam")


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
def test_each_chain_is_searched_as_if_it_were_alone(dtype, tmp_path):
    """float32 omits the smallest λ after (center, trace) only; the number of passes is that of one chain."""
    kernels, y = unlike(dtype)
    K, grid, how = in_memory(kernels, 25), {"p": 1.5, "lam": None}, {"cv": 2, "refit": False, "baselines": "none"}
    result = dmkl.search(dmkl.MKFDA(), K, y, grid | {"steps": BOTH}, **how)
    given = {BOTH[0]: LAM_TRACE, BOTH[1]: LAM_COSINE}
    alone = {
        chain: dmkl.search(dmkl.MKFDA(steps=chain), K, y, grid | {"lam": lams}, **how) for chain, lams in given.items()
    }
    for chain, single in alone.items():
        own = single.scores.isel(p=0, drop=True)
        assert values(result, chain, "score").lam.values.tolist() == single.grid["lam"]
        np.testing.assert_array_equal(values(result, chain, "score"), own["score"])
        np.testing.assert_allclose(values(result, chain, "objective"), own["objective"], rtol=2e-4)
    assert alone[BOTH[0]].grid["lam"] == [lam for lam in LAM_TRACE if lam > 5e-8 or dtype == "float64"]
    assert alone[BOTH[1]].grid["lam"] == list(LAM_COSINE)
    assert result.n_passes_ < sum(single.n_passes_ for single in alone.values())
    assert result.best_score_ == max(single.best_score_ for single in alone.values())
    rows = result.table()
    assert len(rows) == sum(len(single.table()) for single in alone.values())
    assert result.scores.attrs["n_points"] == 2 * len(rows)
    assert result.grid_asked == {"p": [1.5], "lam": None, "steps": list(CHAINS)}
    result.save(tmp_path / "found")
    again = dmkl.load(tmp_path / "found")
    assert again.best_params_ == result.best_params_
    assert again.scores["status"].equals(result.scores["status"])


@pytest.mark.parametrize(
    ("learner", "name"),
    [
        (dmkl.MKSVM(), "C"),
        (dmkl.LPBoost(cv=2), "C"),
        (dmkl.LocalizedMKL(max_iter=2), "C"),
        (dmkl.GSMKL(n_groups=1, loss="square", max_iter=2), "lam"),
        (dmkl.EasyMKL(), "lam"),
        (dmkl.Uniform(), "lam"),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.filterwarnings("ignore::dmkl.errors.ConvergenceWarning")
def test_both_chains_are_tried_by_default_whatever_the_learner(learner, name, monkeypatch):
    monkeypatch.setattr("dmkl.searching.grid.C_VALUES", (0.5, 2.0))
    kernels, y = unlike()
    K, how = in_memory(kernels, 25), {"baselines": "none"}
    result = dmkl.search(learner, K, y, {name: None}, cv=2, refit=False, **how)
    chains = ["+".join(learner.steps), BOTH[1]]
    assert result.scores["steps"].values.tolist() == chains
    given = dmkl.search(learner, K, y, {name: None, "steps": chains}, cv=2, refit=False, **how)
    np.testing.assert_array_equal(result.scores["score"], given.scores["score"])
    assert dmkl.evaluate(learner, K, y, {name: None}, outer=2, inner=2, **how).parameters == (name, "steps")
    for grid in {name: 0.1}, {name: None, "steps": [learner.steps]}:
        assert dmkl.search(learner, K, y, grid, cv=2, refit=False, **how).scores.sizes.get("steps", 1) == 1


def test_other_questions_have_the_chains_of_searches_with_lam_of_their_own(monkeypatch):
    lams = dict(zip(BOTH, ((0.01, 1.0), (0.25, 4.0)), strict=True))
    for name, values_of_chain in zip(("LAM_TRACE", "LAM_COSINE"), lams.values(), strict=True):
        monkeypatch.setattr(f"dmkl.searching.grid.{name}", values_of_chain)
    kernels, y = unlike("float64")
    K, grid = in_memory(kernels, 25), {"p": 2.0, "lam": None}
    searched = dmkl.search(dmkl.MKFDA(), K, y, grid, 2, refit=False, baselines="none")
    added = dmkl.importance(dmkl.MKFDA(), K, y, grid, cv=2).data
    tested = dmkl.permutation_test(dmkl.MKFDA(), K, y, grid, 1, cv=2).data
    for data in (added, tested):
        steps = tuple(str(data["steps"].values).split("+"))
        assert {"p": float(data["p"]), "lam": float(data["lam"]), "steps": steps} == searched.best_params_
        assert float(data["score"].mean()) == pytest.approx(searched.best_score_)
    assert set(np.ravel(tested["null_steps"])) <= set(BOTH)
    grid["steps"] = BOTH
    evaluated = dmkl.evaluate(dmkl.MKFDA(), K, y, grid, outer=2, inner=2)
    fits = int((evaluated.searches["0"].scores["status"] >= 0).sum())
    assert f"{2 * fits} fits" in evaluated.summary()
    chosen = evaluated.scores["steps"].values, evaluated.scores["lam"].values
    assert all(lam in lams[chain] for chain, lam in zip(*chosen, strict=True))
    assert np.isfinite(dmkl.importance(dmkl.MKFDA(), K, y, grid, cv=2, choose="anew").data["loss"]).all()


def test_a_learner_that_is_no_dataclass_has_both_chains_too(models):
    class Own(dmkl.MKFDA):
        """The sum."""

        def __init__(self, lam=0.1, *, steps=("center", "trace")):
            super().__init__(p=np.inf, lam=lam, steps=steps)

    assert second_chain(Own()) == CHAINS
    assert second_chain(Own(steps=("trace",))) == second_chain(dmkl.NCuts()) == ()


def test_where_samples_differ_in_size_the_summary_says_that_another_chain_may_do_better():
    kernels, y = unlike()
    K, grid = in_memory(kernels, 25), {"p": 2.0, "lam": 0.1}
    hint = "the steps cosine+center may do better; compare by grid={'p': None, 'lam': None, 'steps': "
    result = dmkl.search(dmkl.MKFDA(), K, y, grid, cv=2, refit=False, baselines="none")
    assert "steps" not in result.scores.dims
    assert hint in result.summary()
    assert hint in dmkl.evaluate(dmkl.MKFDA(), K, y, grid, outer=2, inner=2, baselines="none").summary()
    for model, kernel_set in (dmkl.MKFDA(), K.select(["kernel_2"])), (dmkl.MKFDA(steps=CHAINS[1]), K):
        assert hint not in dmkl.search(model, kernel_set, y, grid, cv=2, refit=False, baselines="none").summary()
