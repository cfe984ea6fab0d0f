"""All returned and stored data have descriptions, meaning and units of every variable, and are read as saved."""

import contextlib
import re

import numpy as np
import pytest
import xarray as xr
import zarr
from helpers.conformance import problems

import dmkl
from dmkl.errors import InputError
from dmkl.health import check
from dmkl.learners.learner import MODELS, KernelLearner
from dmkl.store.format import NODES
from dmkl.variables import VARIABLES, variable

M = 30
Y = np.array(["apple", "pear", "plum"])[np.arange(M) % 3]
GRID = {"p": [1, 2], "lam": [1.0]}
WITHOUT_COORDINATE = {
    r"part_\d+_step_\d+_\w+": "axes of the matrices of a fitted step, in the order of the samples or of its covariates",
    "model_kernel": "kernels in the order of the attribute kernel_names",
    "label": "classes in the order of the attribute classes",
    "decision_problem": "problems in the order of the columns of dual_coef_, or one for all",
    "decision_column": "scores in the order of the columns of dual_coef_",
}
"""Dimensions of the arrays that a model keeps in its file, which have no coordinate, and the reason."""


@pytest.fixture(scope="module")
def K(tmp_path_factory):
    rng = np.random.default_rng(0)
    features = {"shape": rng.normal(size=(M, 4)) + np.arange(M)[:, None] % 3, "color": rng.normal(size=(M, 3))}
    specs = [{"function": "linear"}, {"function": "rbf", "bandwidth": [1]}]
    return dmkl.build(tmp_path_factory.mktemp("variables") / "set.zarr", features, specs, labels=Y)


def undescribed(dataset):
    """Variables without a description, numbers without units, and variables that differ from the registry."""
    names = []
    for name, values in dataset.variables.items():
        described = variable(str(name))
        numbers = values.dtype.kind in "iuf"
        has_units = not numbers or "units" in values.attrs or (described and not described.units)
        right = described is None or (values.dtype.kind in described.kinds and set(described.dims) <= set(values.dims))
        if "long_name" not in values.attrs or not has_units or not right:
            names.append(f"{name} {values.dims} {values.dtype} {values.attrs}")
    bare = {str(dim) for dim in {*dataset.dims} - {*dataset.coords}}
    return names + [f"{dim}, a dimension" for dim in bare if not re.fullmatch("|".join(WITHOUT_COORDINATE), dim)]


def labeled(result):
    """Yield every labeled data set or array in `result`, its items and public attributes, with its location."""
    if isinstance(result, xr.Dataset):
        yield "", result
    elif isinstance(result, xr.DataArray):
        yield "", result.to_dataset(name=result.name)
    elif isinstance(result, dict):
        for key, value in result.items():
            yield from ((f"[{key!r}]{where}", dataset) for where, dataset in labeled(value))
    elif type(result).__module__.startswith("dmkl."):
        for name in dir(result):
            value = None
            with contextlib.suppress(InputError):  # an unavailable property, such as the confusion of a regression
                value = None if name.startswith("_") else getattr(result, name)
            if isinstance(value, xr.Dataset | xr.DataArray | dict):
                yield from ((f".{name}{where}", dataset) for where, dataset in labeled(value))


TWO = (Y[:, None] == ["apple", "pear"]).astype(int)
NUMBERS = np.arange(float(M))
SCORERS = ["accuracy", "balanced_accuracy"]
SHAPE = {"shape": ["shape-linear", "shape-rbf"]}
FISHER = dmkl.MKFDA()
POINT = {"p": [2], "lam": [1.0]}
FOLDS, TWICE, ALONE = {"grid": GRID, "cv": 2}, {"grid": POINT, "outer": 2, "inner": 2}, {"cv": 2, "baselines": "none"}
CHAINS = {"p": [1, 2], "steps": [("center", "trace"), ("cosine", "center")], "solver": ["direct", "subspace"]}


BY_DEFAULT = "MKFDA MKLogistic MKSVM GMKL EasyMKL Stack LocalizedMKL Uniform SingleBest".split()
MODELS_FITTED = {
    **{name: lambda K, name=name: getattr(dmkl, name)().fit(K) for name in BY_DEFAULT},
    "MKRidge": lambda K: dmkl.MKRidge().fit(K, NUMBERS),
    "MKFDA, tasks": lambda K: dmkl.MKFDA().fit(K, TWO),
    "VarianceComponents": lambda K: dmkl.VarianceComponents(shares="diagonal").fit(K, NUMBERS % 3 == 0),
    "MKFDA, residualized": lambda K: dmkl.MKFDA(steps=(dmkl.residualize(NUMBERS), "trace")).fit(K),
    "MKRidge, targets": lambda K: dmkl.MKRidge().fit(K, np.stack([NUMBERS, NUMBERS % 7], axis=1)),
    "MKGLM, covariates": lambda K: dmkl.MKGLM(steps=(dmkl.residualize(NUMBERS % 5), "trace")).fit(K, NUMBERS),
    "MKGLM, levels": lambda K: dmkl.MKGLM("ordinal").fit(K, NUMBERS % 4),
    "MKCox": lambda K: dmkl.MKCox().fit(K, NUMBERS + 1.0),
    "MKCox, strata": lambda K: dmkl.MKCox(strata=NUMBERS % 2).fit(K, NUMBERS + 1.0),
    "MKSVM, pairs": lambda K: dmkl.MKSVM(multiclass="ovo").fit(K),
    "LPBoost": lambda K: dmkl.LPBoost(cv=2).fit(K),
    "StackRegressor": lambda K: dmkl.StackRegressor().fit(K, NUMBERS),
    "KernelKMeans": lambda K: dmkl.KernelKMeans(2).fit(K),
    "MultipleKernelKMeans": lambda K: dmkl.MultipleKernelKMeans(2).fit(K),
    "GSMKL": lambda K: dmkl.GSMKL(n_groups=2).fit(K),
    "LocalizedMKL, table": lambda K: dmkl.LocalizedMKL(gating="shape").fit(K),
    "NCuts": lambda K: dmkl.NCuts(steps=()).fit(K),
    "SpectralLearning": lambda K: dmkl.SpectralLearning().fit(K.select(["shape-rbf", "color-rbf"])),
    "Product": lambda K: dmkl.Product().fit(K.select(["shape-rbf", "color-rbf"])),
}
METHODS = "predict decision_function transform contributions combined_kernel kernel_pca predict_survival".split()
RESULTS = {
    "MKFDA, dual": lambda K: dmkl.MKFDA(solver="dual").fit(K),
    "MKFDA, subspace": lambda K: dmkl.MKFDA(solver="subspace").fit(K),
    "MKFDA, interleaved": lambda K: dmkl.MKFDA(p=1, solver="interleaved").fit(K),
    "search": lambda K: dmkl.search(FISHER, K, **FOLDS, baselines="all", scoring=SCORERS),
    "search, steps and solvers": lambda K: dmkl.search(FISHER, K, grid=CHAINS, **ALONE),
    "search, tasks": lambda K: dmkl.search(FISHER, K, TWO, **FOLDS),
    "search, groups": lambda K: dmkl.search(dmkl.GSMKL(), K, grid={"n_groups": [1, 2], "C": [1.0]}, **ALONE),
    "search, examples": lambda K: dmkl.search(dmkl.NCuts(), K, grid={"n_examples": [1, 2]}, **ALONE),
    "evaluate": lambda K: dmkl.evaluate(FISHER, K, **TWICE, scoring=SCORERS),
    "evaluate, tasks": lambda K: dmkl.evaluate(FISHER, K, TWO, **TWICE, baselines="none"),
    "permutation_test": lambda K: dmkl.permutation_test(FISHER, K, **FOLDS, n_permutations=2),
    "auto": lambda K: dmkl.auto(K, None, ["mkfda", "stack"], {"mkfda": POINT}, 2),
    "compare": lambda K: dmkl.compare(["mkfda", "stack", "auto"], K, grids={"mkfda": POINT}, outer=2, inner=2),
    "association_test": lambda K: dmkl.association_test(K, NUMBERS, n_permutations=2),
    "association_test, targets": lambda K: dmkl.association_test(K, TWO),
    "importance": lambda K: dmkl.importance(FISHER, K, **FOLDS, shapley=2, scoring=SCORERS, kernel_groups=SHAPE),
    "stability": lambda K: dmkl.stability(FISHER, K, n_resamples=2, n_selected=1),
    "stability, tasks": lambda K: dmkl.stability(FISHER, K, TWO, n_resamples=2, how="bootstrap"),
    "assess": lambda K: dmkl.assess(dmkl.Uniform().fit(K), K),
    "assess, tasks": lambda K: dmkl.assess(dmkl.Uniform().fit(K, TWO), K, TWO),
    "compare_predictions": lambda K: dmkl.compare_predictions(
        *[dmkl.evaluate(FISHER, K, Y == "pear", **TWICE).predictions] * 2
    ),
    "kernel_scores": lambda K: dmkl.kernel_scores(dmkl.MKRidge().fit(K, NUMBERS).contributions(K), NUMBERS),
    "search, candidates": lambda K: dmkl.search(
        dmkl.MKRidge(weights="shared", n_candidates=2), K, np.c_[NUMBERS, NUMBERS**2], {"lam": [0.1]}, cv=2
    ),
    "survival_scores": lambda K: dmkl.survival_scores(np.full((M, 2), 0.5), NUMBERS + 1.0, times=[1.0, 5.0]),
    "analyze": lambda K: dmkl.analyze(K),
    "relevant_dimension": lambda K: dmkl.relevant_dimension(K),
    "aligned_weights": lambda K: dmkl.aligned_weights(K),
    "analyze, probes": lambda K: dmkl.analyze(K, probes=5),
    "open": lambda K: {"alignment": K.alignment(), "xarray": K.to_xarray(), "share": K.covariate_shares(NUMBERS)},
    "check": lambda K: check(K),
}
UNLABELED = {"build", "build_cross", "cluster", "cluster_agreement", "combine", "create", "delay_features", "load",
             "plot_components", "plot_confusion", "plot_contributions", "plot_predictions", "plot_survival",
             "prediction_table", "report", "residualize", "signed_times", "solve_mkfda", "solve_mkglm"}  # fmt: skip


@pytest.mark.filterwarnings("ignore::dmkl.errors.TrainingRowsWarning")
@pytest.mark.filterwarnings("ignore::dmkl.errors.ConvergenceWarning")
@pytest.mark.parametrize("name", [*MODELS_FITTED, *RESULTS])
def test_all_that_is_labeled_is_described(name, K, tmp_path):
    result = (MODELS_FITTED | RESULTS)[name](K)
    parts = list(labeled(result))
    if name in MODELS_FITTED:
        refused = ("combined_kernel", "kernel_pca") if name.startswith(("GSMKL", "LocalizedMKL")) else ()
        for method in (each for each in METHODS if hasattr(result, each) and each not in refused):
            parts += [(f".{method}(K){where}", part) for where, part in labeled(getattr(result, method)(K))]
        if name in ("MKFDA", "MKFDA, tasks", "MKLogistic"):
            parts += [(".predict_proba(K)", part) for _, part in labeled(result.predict_proba(K))]
    if isinstance(result, dmkl.Stability) and result.tasks is not None:
        parts += [(".error_bound()", part) for _, part in labeled(result.error_bound())]
    if hasattr(result, "describe"):
        description = result.describe()
        tables = [make() for make in description.tables.values()]
        assert all(len(table.cells(table.frame)) == len(table.frame) for table in tables)
        assert all(np.size(figure.draw()) for figure in description.figures.values())
    if hasattr(result, "save"):
        path = tmp_path / "result"
        result.save(path)
        for group in (None, *(name for name, _ in zarr.open_group(path, mode="r").groups())):
            with xr.open_zarr(path, group=group) as opened:
                parts.append(("on disk", opened))
        assert name.startswith("analyze") or problems(path) == ""
        read = dmkl.load(path)
        if isinstance(read, KernelLearner):
            assert read.weights_.attrs == result.weights_.attrs
        else:
            assert type(read) is type(result)
            assert str(read) == str(result)
            for own, expected in zip(labeled(read), labeled(result), strict=True):
                assert own[0] == expected[0]
                xr.testing.assert_identical(own[1], expected[1])
    assert parts
    assert [f"{where} {each}" for where, part in parts for each in undescribed(part)] == []


def test_no_learner_and_no_function_is_left_out():
    covered = {name.split(",")[0] for name in [*MODELS_FITTED, *RESULTS]}
    learners = {name for name, kind in MODELS.items() if kind.__module__.startswith("dmkl.")}
    functions = {name for name in dmkl.__all__ if callable(getattr(dmkl, name)) and name.islower()}
    assert learners <= covered
    assert functions <= covered | UNLABELED


def test_kernel_sets(K):
    arrays = dict(zarr.open_group(K.view.source.location, mode="r").arrays())
    assert {"gram_upper", "kernel", "sample", "label"} <= set(arrays)
    for name, array in arrays.items():
        assert array.attrs["long_name"] == NODES[name].doc


def test_meanings_are_words_and_units_fit():
    for name, described in VARIABLES.items():
        assert described.meaning.strip() == described.meaning != "", name
        assert not (described.kinds == "UOT" and described.units), name
