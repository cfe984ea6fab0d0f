"""Small kernel sets, and the pages of models and results on them, each created once in a session."""

import tempfile
import warnings
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics.pairwise import rbf_kernel

import dmkl
from dmkl.cli.main import main
from dmkl.errors import ConvergenceWarning


def search(K):
    return dmkl.search(dmkl.MKFDA(tol=1e-3), K, grid={"p": [1, 2, np.inf], "lam": [1e-4, 1e-2, 1]}, cv=3)


def permuted(K):
    return dmkl.permutation_test(dmkl.MKFDA(p=2), K, grid={"lam": [1e-2]}, n_permutations=9, cv=3)


def many_targets(K):
    Y = np.random.default_rng(1).normal(size=(60, 16)) + 2 * (np.arange(60) % 3)[:, None]
    learner = dmkl.MKRidge(weights="shared", n_candidates=4)
    return dmkl.evaluate(learner, K, Y, {"lam": [0.1, 1]}, outer=2, inner=2)


def predicted(K, model):
    """The page of a prediction."""
    with tempfile.TemporaryDirectory() as folder:
        model.save(f"{folder}/model")
        page, place = Path(folder) / "page.html", K.view.source.location
        assert main(["predict", f"{folder}/model", place, "--rows", "0:60", "--report", str(page)]) == 0
        return page.read_text(encoding="utf-8")


MADE = {
    "search": lambda K, found: found(),
    "model": lambda K, found: found().best_,
    "machine": lambda K, found: dmkl.MKSVM().fit(K),
    "groups": lambda K, found: dmkl.GSMKL(n_groups=2).fit(K),
    "evaluation": lambda K, found: dmkl.evaluate(dmkl.MKFDA(), K, grid={"lam": [1e-2, 1]}, outer=2, inner=2),
    "many targets": lambda K, found: many_targets(K),
    "analysis": lambda K, found: dmkl.analyze(K),
    "permutation test": lambda K, found: permuted(K),
    "variance components": lambda K, found: dmkl.VarianceComponents().fit(K, np.arange(60) % 3 + np.sin(np.arange(60))),
    "several": lambda K, found: [found(), dmkl.stability(dmkl.MKFDA(lam=1e-2), K, n_resamples=4), permuted(K)],
}
"""Functions of a kernel set and of a function that returns its search."""
GRID_OF_CHAINS = {"p": [1, 2], "lam": [1e-2, 1], "steps": [("cosine", "center"), ("center", "multiplicative")]}
FURTHER = {
    "chains": lambda K, found: dmkl.search(dmkl.MKFDA(), K, grid=GRID_OF_CHAINS, cv=3),
    "stability": lambda K, found: dmkl.stability(dmkl.MKFDA(), K, n_resamples=10, groups=np.arange(60) % 4),
    "importance": lambda K, found: dmkl.importance(dmkl.MKFDA(), K, grid={"lam": [1e-2]}, cv=3),
    "association": lambda K, found: dmkl.association_test(K, np.arange(60) % 2),
    "comparison": lambda K, found: dmkl.compare(["mkfda", "sum"], K, outer=2, inner=2),
    "prediction": lambda K, found: predicted(K, found().best_),
}
"""Further kinds, whose pages are looked at in a browser alone."""


@pytest.fixture(params=MADE)
def kind(request):
    return request.param


@pytest.fixture(params=[*MADE, *FURTHER])
def every_kind(request):
    return request.param


@pytest.fixture(scope="session")
def K(tmp_path_factory):
    rng = np.random.default_rng(0)
    y = np.array(["<apple>", "pear", "plum"])[np.arange(60) % 3]
    views = [rng.normal(size=(60, 4)) + shift * (np.arange(60)[:, None] % 3) for shift in (1.5, 0.5, 0.0)]
    path = tmp_path_factory.mktemp("reports") / "set.zarr"
    return dmkl.create(path, [rbf_kernel(view) for view in views], names=["clear", "fair & poor", "noise"], labels=y)


@pytest.fixture(scope="session")
def result(K):
    return search(K)


@pytest.fixture(scope="session")
def report(K, result):
    """The page of a kind of `MADE` on `K`, as text."""
    return _reports(K, lambda: result)


@pytest.fixture(scope="session")
def unwieldy_report(tmp_path_factory):
    """The same for kernels and classes with names that are long, or cannot be broken between words."""
    rng = np.random.default_rng(0)
    names = [f"{part} of gene expression, RBF γ={width}" for part in ("promoters", "all") for width in (0.001, 0.01, 1)]
    names += ["x" * 60, "/data/cohort_2/mirna/linear_normalized_without_sex_chromosomes.npy", "m_$2$ & <b>"]
    classes = ["Actinobacteria_from_soil", "Proteobacteria (marine)", "Bacteroidetes", "Firmicutes", "y" * 40]
    y = np.arange(60) % len(classes)
    views = [rng.normal(size=(60, 4)) + 0.4 * (j % 4) * y[:, None] for j in range(len(names))]
    path = tmp_path_factory.mktemp("unwieldy") / "set.zarr"
    K = dmkl.create(path, [rbf_kernel(view) for view in views], names=names, labels=np.array(classes)[y])
    return _reports(K, cache(lambda: search(K)))


def _reports(K, result):
    @cache
    def report(kind):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            made = (MADE | FURTHER)[kind](K, result)
            return made if isinstance(made, str) else dmkl.report(made)

    return report
