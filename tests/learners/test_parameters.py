"""Parameters of learners: their range, the kernels and labels that they do not go with, and solvers with options."""

import inspect
import json

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import dmkl
from dmkl.errors import InputError
from dmkl.learners.checks import decode, encode
from dmkl.learners.saving import decode_parameters, models
from dmkl.reports.contents import _call
from dmkl.solvers.fisher.problem import parse_solver

NUMBERS = ("lam", "C", "nu", "tol", "sigma", "spread", "eigengap_weight")
COUNTS = ("max_iter", "restarts", "n_examples", "n_groups", "n_clusters", "n_probes", "random_state", "refine")
WORDS = ("decision", "grouping", "loss", "method", "multiclass", "shares", "sharing", "traces", "weighting")
WRONG = {
    **dict.fromkeys(NUMBERS, (np.inf, np.nan, -1, "much", [[1.0]], 10**400)),
    **dict.fromkeys(COUNTS, (np.inf, np.nan, -1, 1.5, "many", True)),
    **dict.fromkeys(WORDS, ("nothing", 0)),
    "p": (0.5, np.nan, "high", [[1.0]], 10**400),
}
RANGES = [(model, name) for model in models().values() for name in inspect.signature(model).parameters if name in WRONG]

M = 60
TWO, THREE = np.arange(M) % 2, np.array(["ash", "elm", "oak"])[np.arange(M) % 3]
TEN = np.r_[np.arange(20) % 10, np.arange(40) % 8]
TASKS = np.stack([TWO, THREE == "ash"], axis=1).astype(int)
UNKNOWN = np.where((np.arange(M)[:, None] % 7 == 0) & [True, False], np.nan, TASKS)
AGE, NORTH = (pd.DataFrame({name: np.sin(k * np.arange(M))}) for k, name in ((1, "age"), (2, "north")))
VALUES = np.arange(2.0 * M).reshape(M, 2)
FEW = np.arange(M) == 3
TABLES = {name: np.random.default_rng(k).standard_normal((M, 3)) for k, name in enumerate(["context", "view"])}
K = dmkl.build(None, TABLES, {"function": "rbf", "gamma": [0.2, 1.0]}, labels=TWO)
"""Four kernels with features, whose entries are positive, and two classes."""


@pytest.mark.parametrize(("model", "name"), RANGES)
def test_values_that_break_a_rule(model, name):
    for value in WRONG[name]:
        with pytest.raises(InputError, match=rf"\b{name}\b"):
            model(**{name: value}).fit(K)


# --- kernels and labels ----------------------------------------------------------------------------------------------
def shared(**parameters):
    return dmkl.MKRidge(**{"weights": "shared", "n_candidates": 6} | parameters)


CASES = [
    # --- parameters of machines and clusters ---
    (dmkl.MKSVM(C=[1, 2, 3]), TWO, "C has 3 values and there are 1 problems"),
    (dmkl.MKSVM(sharing="classes", multiclass="ovo"), THREE, "take multiclass='ovr'"),
    (dmkl.MKSVM(sharing="classes"), TASKS, "tasks of a multilabel problem have their own weights"),
    (
        dmkl.GMKL(sigma=[1, 2]),
        TWO,
        r"sigma has shape \(2,\), expected one number, or a price for each of the 4 kernels",
    ),
    (dmkl.GMKL(sigma=0.0), TWO, "without a price"),
    (dmkl.GMKL(A=np.eye(4)), TWO, "A and b define A d"),
    (dmkl.GMKL(A=np.eye(3), b=np.ones(3)), TWO, "A has shape"),
    (dmkl.EasyMKL(1.0), THREE, "lam must"),
    (dmkl.GSMKL(n_groups={"oak": 3, "ash": 1}), THREE, "n_groups has no number for class 'elm'"),
    (dmkl.GSMKL(n_groups={"oak": 3}, across=True), THREE, "groups across classes have one number"),
    (dmkl.GSMKL(n_groups=(1, 2, 3)), UNKNOWN, "n_groups has 3 values and there are 2 problems"),
    (dmkl.GSMKL(n_groups=1000), TWO, "1000 groups"),
    (dmkl.GSMKL(grouping="kmeans", feature="nothing"), TWO, "no feature table 'nothing'"),
    (dmkl.LocalizedMKL(gating="no"), TWO, "no feature table 'no'"),
    (dmkl.NCuts(9), TEN, "class 8 has 2 training samples; take n_examples=2 or fewer"),
    (dmkl.NCuts(2, loss="square", multiclass="ovo"), TEN, "take multiclass='ovr', or loss='hinge'"),
    (dmkl.NCuts(2, C=[1.0, 2.0]), TEN, "C has 2 values and there are 10 problems"),
    (dmkl.SpectralLearning(eigengap_weight=[1.0, 2.0]), TWO, "eigengap_weight must be a finite number"),
    (dmkl.SpectralLearning(steps="center"), TWO, r"kernel 'context-.*' has an entry -.*; take steps without 'center'"),
    (dmkl.KernelKMeans(M + 1), None, "n_clusters is 61, and there are 60 samples"),
    (dmkl.MultipleKernelKMeans(M + 1), None, "n_clusters is 61, and there are 60 samples"),
    # --- parameters of least squares ---
    (dmkl.MKFDA(priors="balanced"), TWO, "'empirical'"),
    (dmkl.MKFDA(priors=[0.5, 0.6]), TWO, "whose sum is 1.1"),
    (dmkl.MKFDA(priors=[0.2, 0.3, 0.5]), TWO, "3 numbers and there are 2 classes"),
    (dmkl.MKFDA(priors={0: 0.2, 5: 0.8}), TWO, "and the classes are"),
    (dmkl.MKFDA(weights="shared"), TWO, "weights='shared' is for MKRidge"),
    (shared(weights="given"), VALUES, "weights must be 'shared', or a weight for each kernel, got 'given'"),
    (shared(p=1.5), VALUES, "which p has no effect on"),
    (shared(solver="cg"), VALUES, "solver has no effect"),
    (shared(candidate=6), VALUES, r"from 0 to 5 \(n_candidates=6\), got 6"),
    (shared(weights=None, candidate=0), VALUES, "candidate is a position among the candidates"),
    (shared(weights=None, refine=5), VALUES, "refine starts at the candidates of weights='shared'"),
    (shared(candidate=0, refine=5), VALUES, r"a plain fit has no folds; let dmkl\.search"),
    (shared(), VALUES, r"let dmkl.search \(dmkl search\) choose"),
    (shared(candidates=np.ones((3, 4)), candidate=3), VALUES, "from 0 to 2"),
    (shared(candidates=0, candidate=0), VALUES, "candidates must be a whole number, at least 1"),
    (dmkl.MKRidge(candidates=np.ones((3, 4))), VALUES, "candidates are weights to choose from"),
    (dmkl.MKRidge(weights=np.ones((4, 3))), VALUES, "weights has 3 values and there are 2 problems"),
    (dmkl.MKRidge(weights=-np.ones((4, 2))), VALUES, "none negative"),
    (dmkl.MKRidge(weights=np.ones((3, 2))), VALUES, "weights must be 4 finite numbers"),
    (dmkl.MKRidge(weights=xr.DataArray(np.ones((2, 4)), dims=("target", "x"))), VALUES, "weights must be over kernel"),
    (dmkl.MKRidge(weights=np.ones((4, 2)), kernel_groups={"g": "view-.*"}), VALUES, "kernel_groups has no effect"),
    (dmkl.VarianceComponents("he", genetic_correlation=True), VALUES[:, 0], "two or more targets, and y has one"),
    (dmkl.Stack([0.0]), TWO, "lams"),
    (dmkl.Stack(steps=(dmkl.residualize(AGE),)), TWO, "takes no covariates out"),
    (
        dmkl.MKRidge(steps=(dmkl.residualize(AGE),)),
        2 * AGE["age"] + 1,
        "covariates of residualize explain y completely",
    ),
    (dmkl.MKRidge(steps=tuple(map(dmkl.residualize, (AGE, NORTH)))), VALUES, "put all covariates into one table"),
    (dmkl.MKRidge(steps=[["center"]]), VALUES, r"steps takes names of steps .* got \['center'\]"),
    (dmkl.MKRidge(steps=5), VALUES, "steps takes names of steps .* got 5"),
    # --- losses and their labels ---
    (dmkl.MKGLM("ordinal"), VALUES[:, 0], "of 2 to 50 levels"),
    (dmkl.MKGLM("ordinal"), TASKS, "one column of levels, got 2"),
    (dmkl.MKGLM("poisson"), -VALUES[:, 0], "counts or rates, 0 or more"),
    (dmkl.MKGLM("poisson", offset=np.full(M, -np.inf)), TWO, "offset is a finite number, and that of '0' is -inf"),
    # --- labels ---
    (dmkl.MKFDA(), [[1, 2], [3]] * 30, "the rows of the labels are no matrix"),
    (dmkl.MKFDA(), pd.Series([(1, 2), (3, 4)] * 30), r"a class is an integer or a string, found \(1, 2\)"),
    (dmkl.MKFDA(), xr.Dataset({name: ("sample", TWO) for name in "ab"}), "one array or table, got a Dataset of sev"),
    (dmkl.MKRidge(), np.full(M, 2.0), "y has a single value, 2, in training"),
    (dmkl.MKRidge(), np.where([True, False], 2.0, VALUES), "target '0' has a single value"),
    (dmkl.MKRidge(), np.where(FEW, np.nan, 1.0), "1 labels that are missing; leave those samples out"),
    (dmkl.MKRidge(), np.where(FEW, np.inf, 1.0), "1 infinite labels"),
    (dmkl.MKRidge(), THREE, "targets of a regression are numbers"),
    (dmkl.MKRidge(), np.arange(59.0), r"y has shape \(59,\), expected \(60,\)"),
    (dmkl.MKFDA(), UNKNOWN[:, 0], "labels that are missing; leave those samples out"),
    (dmkl.MKFDA(), np.where(UNKNOWN == [0, 2], np.nan, UNKNOWN), "task '0' has only the label 1 in training"),
    (dmkl.MKFDA(), UNKNOWN * [np.nan, 1], "task '0' has no known labels in training"),
    (dmkl.NCuts(), UNKNOWN, "needs the labels of all samples"),
    (dmkl.LocalizedMKL(), UNKNOWN, "needs the labels of all"),
    (dmkl.StackRegressor(), UNKNOWN, "labels of targets are unknown; .* such as MKRidge, which trains each target"),
    (dmkl.Uniform(), np.nan_to_num(2 * UNKNOWN - 1), "found -1, 0, 1; say which of them stands for unknown labels"),
]


@pytest.mark.parametrize(("learner", "y", "message"), CASES, ids=[message for *_, message in CASES])
def test_what_a_fit_refuses(learner, y, message):
    with pytest.raises(InputError, match=message):
        learner.fit(K, y)
    assert not hasattr(learner, "weights_")


@pytest.mark.parametrize(
    ("learner", "parameter"),
    [(dmkl.GSMKL(grouping="kmeans"), "grouping='kmeans'"), (dmkl.LocalizedMKL(gating="place"), "gating='place'")],
)
def test_kernels_without_features(learner, parameter):
    with pytest.raises(InputError, match=f"{parameter} needs features"):
        learner.fit([np.eye(20)], np.arange(20) % 2)


# --- solvers with options ---------------------------------------------------------------------------------------------
SOLVERS = [
    ("direct(master=taylor)", dmkl.Direct("taylor")),
    ("cg(master='exact')", dmkl.CG(master="exact")),
    ("subspace(basis=8GiB, finish=report)", dmkl.Subspace("8GiB", "report")),
    (" subspace( ) ", dmkl.Subspace()),
    ("dual(mu=0.1)", dmkl.Dual(mu=0.1)),
    ("stacked", "stacked"),
]


@pytest.mark.parametrize(("text", "solver"), SOLVERS)
def test_an_object_is_read_from_text_and_json(text, solver):
    assert parse_solver(text) == solver
    assert decode(json.loads(json.dumps(encode(solver)))) == solver


def test_the_bound_on_disk_space_and_the_penalty_reach_the_solver():
    with pytest.warns(dmkl.errors.ConvergenceWarning, match=r"dmkl.Subspace\(basis="):
        model = dmkl.MKFDA(1.5, 1e-6, solver=dmkl.Subspace(basis=4, finish="report"), tol=1e-12).fit(K)
    assert model.gap_ > 1e-12
    assert np.linalg.norm(dmkl.MKFDA(2.0, solver=dmkl.Dual(mu=9.0)).fit(K).weights_) < 0.9


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: dmkl.Direct(master="none"), "master must be 'newton', 'taylor' or 'exact', got 'none'"),
        (lambda: dmkl.Subspace(finish="never"), "finish must be 'auto'"),
        *((lambda basis=basis: dmkl.Subspace(basis), "basis must be") for basis in (np.inf, np.nan, -1, [1], "much")),
        *((lambda mu=mu: dmkl.Dual(mu), "mu must be") for mu in (np.inf, np.nan, -1, "1", [[1.0]], 10**400)),
        (lambda: parse_solver("stacked(mu=1)"), "direct or cg or subspace or dual with options"),
        (lambda: parse_solver("dual(basis=1GiB)"), "dual takes mu=, as in"),
        (lambda: parse_solver("dual(mu=x)"), "mu must be positive"),
        (lambda: dmkl.MKFDA(solver=3)._check_parameters(), "an object such as"),
    ],
)
def test_options_that_break_a_rule(made, message):
    with pytest.raises(InputError, match=message):
        made()


@pytest.mark.parametrize(
    ("written", "solver", "code"),
    [
        ({"solver": "auto", "basis": "1GiB"}, dmkl.Subspace("1GiB"), "dmkl.Subspace(basis='1GiB', finish='auto')"),
        ({"solver": "cg", "master": "exact"}, dmkl.CG("exact"), "dmkl.CG(master='exact')"),
        ({"solver": "auto", "master": "exact"}, dmkl.Direct("exact"), "dmkl.Direct(master='exact')"),
        ({"solver": "dual", "mu": 0.5}, dmkl.Dual(0.5), "dmkl.Dual(mu=0.5)"),
    ],
)
def test_parameters_that_earlier_versions_wrote(written, solver, code):
    earlier = {"p": 1.5, "basis": None, "finish": "auto", "master": "newton", "mu": None} | written
    assert decode_parameters(dmkl.MKFDA, earlier) == {"p": 1.5, "solver": solver}
    assert code in _call(dmkl.MKFDA, earlier)
