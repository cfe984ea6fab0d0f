"""Learners do what all learners do: those of dmkl, and those that ARCHITECTURE.md adds, which adds a solver too."""

from __future__ import annotations

import importlib
import re
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from helpers.references import digits, in_memory
from sklearn.base import is_regressor
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import scale

import dmkl
from dmkl.errors import ConvergenceWarning, IndefiniteKernelError, InputError, refuse
from dmkl.learners.learner import KernelClassifier, KernelRegressor
from dmkl.learners.saving import models as all_models
from dmkl.numerics.fisher import uniform_weights
from dmkl.solvers.fisher.problem import FisherSolver
from dmkl.solvers.fisher.registry import SOLVERS
from dmkl.solvers.interface import Outcome, Status, Step
from dmkl.testing import check_learner

PAGE = (Path(__file__).parents[2] / "ARCHITECTURE.md").read_text(encoding="utf-8")
SOLVER, FIXED, LOGISTIC = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
OWN = [name for name in all_models() if hasattr(dmkl, name)]


@pytest.fixture
def learner_of(models, tmp_path, monkeypatch):
    """Import a learner from a file with nothing but a block of the page, as a user would."""

    def make(block, name):
        (tmp_path / "page.py").write_text(block, encoding="utf-8")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "page", raising=False)
        return getattr(importlib.import_module("page"), name)

    return make


@pytest.mark.slow
@pytest.mark.parametrize("name", OWN)
def test_a_learner_does_what_all_learners_do(name):
    check_learner(getattr(dmkl, name))


@pytest.mark.slow
@pytest.mark.parametrize(
    "learner",
    [
        *(dmkl.MKSVM(multiclass="ovo"), dmkl.MKSVM(decision="means"), dmkl.MKFDA(1, steps=("cosine", "center"))),
        *(dmkl.NCuts(loss="square"), dmkl.GSMKL(across=True), dmkl.MKFDA(sharing="none", class_weight="balanced")),
        *(dmkl.MKSVM(sharing="classes"), dmkl.MKRidge(weights="shared", candidate=0)),
        *(dmkl.MKLogistic(sharing="classes"), dmkl.MKGLM("quantile")),
        *(dmkl.LPBoost([0.5, 2.0], sharing="none"), dmkl.VarianceComponents("he"), dmkl.EasyMKL(decision="means")),
    ],
    ids=repr,
)
def test_a_learner_with_other_parameters_does_too(learner):
    check_learner(learner)


K = in_memory(digits()[0][:, :60, :60], 25)
Y = digits()[1][:60] % 2
DESCENTS = ("GSMKL", "LocalizedMKL", "KernelKMeans", "MultipleKernelKMeans")
"""Learners that end near a local minimum, of which nothing is proven: their status tells of steps that run out."""
PROVEN = ("MKSVM", "GMKL", "MKFDA", "MKLogistic", "MKGLM", "MKCox", "MKRidge", "NCuts", "SpectralLearning")


@pytest.mark.parametrize("name", [*PROVEN, "VarianceComponents", *DESCENTS])
def test_steps_that_run_out_are_told(name):
    learner = getattr(dmkl, name)(max_iter=1, tol=1e-12, steps=())
    with nullcontext() if name in DESCENTS else pytest.warns(ConvergenceWarning, match="raise max_iter"):
        learner.fit(K, Y + 1.0 if is_regressor(learner) else Y)
    assert "raise max_iter" in learner.status_


@pytest.mark.parametrize(
    "learner",
    [
        *(dmkl.EasyMKL(), dmkl.LPBoost(), dmkl.MKSVM(C=4.0), dmkl.GMKL(C=4.0), dmkl.GSMKL(), dmkl.LocalizedMKL()),
        *(dmkl.MKLogistic(lam=1e3), dmkl.MKGLM(lam=1e3), dmkl.MKCox(lam=1e3), dmkl.MKRidge(lam=1e3)),
        *(dmkl.Stack([0.1]), dmkl.SingleBest(1e3), dmkl.VarianceComponents()),
        *(dmkl.MKFDA(1.5, 1e3, solver=solver) for solver in SOLVERS if solver != "factors"),
    ],
    ids=repr,
)
def test_an_indefinite_kernel_is_named_where_the_sum_is_definite(learner):
    """The first kernel, and a large λ, hide it; its quadratic form is negative."""
    together = (Y[:, None] == Y).astype(float)
    first, *others = np.asarray(K)[:3]
    kernels = np.stack([first + 10 * together, *others, np.eye(60) - together])
    message = r"kernel 'kernel_3' is not positive semidefinite.*dmkl check.*repair="
    with pytest.raises(IndefiniteKernelError, match=message):
        learner.set_params(steps=()).fit(in_memory(kernels, 25), Y + 1.0 if is_regressor(learner) else Y)


def test_the_learner_of_fixed_weights_is_added_from_the_page(learner_of):
    assert sum(bool(line.strip()) for line in FIXED.splitlines()) <= 40
    kind = learner_of(FIXED, "FixedWeights")
    check_learner(kind)
    with pytest.raises(InputError, match="share must lie between 0 and 1, got 2"):
        kind(2).fit(np.eye(4)[None], [0, 1, 0, 1])


@pytest.mark.slow
def test_the_learner_with_an_intercept_is_added_from_the_page(learner_of):
    check_learner(learner_of(LOGISTIC, "KernelLogistic"))


def test_the_learner_of_the_page_is_logistic_regression(learner_of, tmp_path):
    X, y = (values[:120] for values in load_breast_cancer(return_X_y=True))
    X = scale(X)[:, :4]
    K, train, test = in_memory((X @ X.T)[None], 30), np.arange(80), np.arange(80, 120)
    model = learner_of(LOGISTIC, "KernelLogistic")(0.5, steps=()).fit(K[train, train], y[train])
    expected = LogisticRegression(C=2.0, tol=1e-10).fit(X[train], y[train])
    model.save(tmp_path / "model")
    for each in (model, dmkl.load(tmp_path / "model")):
        np.testing.assert_allclose(
            each.decision_function(K[test, train]), expected.decision_function(X[test]), rtol=1e-5
        )
        np.testing.assert_allclose(each.intercept_, expected.intercept_, rtol=1e-5)
        loss = -np.log(expected.predict_proba(X[train])[np.arange(80), y[train]]).mean()
        np.testing.assert_allclose(each.loss_, loss, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.usefixtures("models")
def test_a_regression_may_have_a_parameter_of_machines():
    """Searches compare classifiers with C, and them alone, with the support vector machine on the sum."""

    class Slopes(KernelRegressor):
        """Dual variables in proportion to the targets.

        Parameters
        ----------
        C
            The factor.
        steps
            As in `MKFDA`.
        """

        def __init__(self, C: float = 1.0, *, steps=("center", "trace")):
            self.C, self.steps = C, steps

        def _problem(self, data, number):
            C = self._of_problems("C", len(data.problems))[number]
            return partial(self._solve, C * data.problems.h[number], data.n_kernels)

        def _solve(self, dual, n):
            yield from ()
            weights = np.full(n, 1 / n)
            return Outcome(Status.CONVERGED, weights, dual, np.nan, steps=[Step(weights, {})])

    check_learner(Slopes)

    class Crude(Slopes):
        """Dual variables in proportion to the targets, by one factor."""

        def _problem(self, data, number):
            return partial(self._solve, self.C * data.problems.h[number], data.n_kernels)

    with pytest.raises(AssertionError, match="Crude: a task has its own value of C, as a search chooses it"):
        check_learner(Crude)


@pytest.mark.slow
def test_check_learner_names_what_is_broken(learner_of):
    def check(**changes):
        check_learner(type("Broken", (learner_of(FIXED, "FixedWeights"),), {"__doc__": "Broken.", **changes}))

    with pytest.raises(InputError, match=r"trail_ of this Broken must be a DataArray, got \[1, 2\]; declare"):
        check(_set_attributes=lambda self, outcome: setattr(self, "trail_", [1, 2]))
    with pytest.raises(AssertionError, match="Broken: a sample of weight 2 counts as two copies of it"):
        check(_check_weights=lambda self: None)
    with pytest.raises(AssertionError, match="Broken: contributions and the intercept add up"):
        check(_offsets=lambda self, samples, **beside: np.ones(1))
    with pytest.raises(AssertionError, match=r"Broken: fit sets attributes whose names end in _, .* are \['trail'\]"):
        check(_set_attributes=lambda self, outcome: setattr(self, "trail", [1, 2]))
    with pytest.raises(AssertionError, match="Broken: classes_ are the labels in order"):
        check(_set_attributes=lambda self, outcome: setattr(self, "classes_", self.classes_[::-1]))
    with pytest.raises(AssertionError, match=r"own value of lam, .*lam must be a number, got \[1.0, 1.0\]"):
        check(
            __init__=lambda self, lam=1.0, steps=(): vars(self).update(lam=lam, steps=steps),
            traits=KernelClassifier.traits.but(rules={"lam": one_number}),
            share=0.5,
        )
    with pytest.raises(AssertionError, match="Broken: labels are those of training"):
        check(labels_of=lambda self, scores: np.full(len(scores), "ant"))
    with pytest.raises(ValueError, match=r"dual variables are \(samples, columns\), got shape \(31,\)"):
        check(_solve=lambda self, signs, n: returned(Outcome(Status.CONVERGED, np.ones(n), signs, np.nan)))
    with pytest.raises(AssertionError, match="MKFDA: its name is that of no other learner"):
        check_learner(type("MKFDA", (learner_of(FIXED, "FixedWeights"),), {}))


def one_number(name, value):
    if not isinstance(value, float):
        refuse(f"{name} must be a number, got {value!r}")


def returned(outcome):
    """A solver that requests nothing."""
    yield from ()
    return outcome


@pytest.mark.usefixtures("models")
@pytest.mark.parametrize(
    ("constructor", "rule"),
    [
        (lambda self, share=None: setattr(self, "share", share or 0.5), "of None it made 0.5"),
        (lambda self, share=0.5: setattr(self, "share", min(share, 1.0)), "it made TypeError"),
        (
            lambda self, share=0.5: vars(self).update(share=share, cache={}),
            "an attribute for each parameter, no others",
        ),
    ],
)
def test_check_learner_names_what_a_constructor_must_not_do(constructor, rule):
    with pytest.raises(AssertionError, match=f"Broken: the constructor .*{rule}"):
        check_learner(type("Broken", (KernelClassifier,), {"__init__": constructor}))


@pytest.mark.usefixtures("models")
def test_check_learner_notices_what_a_learner_remembers_of_the_last_fit():
    class Growing(KernelClassifier):
        def __init__(self, steps=()):
            self.steps = steps

        def _problem(self, data, number):
            self._n = getattr(self, "_n", 0) + 1
            return partial(self._solve, self._n * data.problems.h[number], data.n_kernels)

        def _solve(self, signs, n):
            yield from ()
            return Outcome(Status.CONVERGED, np.full(n, 1 / n), signs[:, None], np.nan)

    with pytest.raises(AssertionError, match="Growing: dual_coef_ of a learner that was fitted to other rows before"):
        check_learner(Growing)
    Growing._problem = lambda self, data, number: partial(self._solve, data.problems.h[number], data.n_kernels)
    check_learner(Growing)  # without a docstring, numbers among its parameters and steps of its solver


def test_a_solver_works_everywhere(tmp_path, monkeypatch):
    """A solver of MK-FDA needs one function and one line: that of the page is used everywhere."""
    names = {"np": np, "FisherSolver": FisherSolver, "SOLVERS": dict(SOLVERS)}
    exec(compile(SOLVER, "page", "exec"), names)
    monkeypatch.setitem(SOLVERS, "uniform", names["SOLVERS"]["uniform"])
    kernels, y = digits()
    K, y, train = in_memory(kernels, 25), y % 3, np.arange(60)
    with pytest.warns(ConvergenceWarning, match="MKFDA ended with a relative gap"):
        model = dmkl.MKFDA(2.0, 1e-2, solver="uniform").fit(K[train, train], y[train])
    assert model.solver_ == "uniform"
    np.testing.assert_allclose(model.weights_, uniform_weights(len(K), 2.0))
    best = dmkl.MKFDA(2.0, 1e-2, solver="direct").fit(K[train, train], y[train])
    assert model.objective_ <= best.objective_ <= model.objective_ + model.gap_ * abs(model.objective_)
    model.save(tmp_path / "model")
    assert dmkl.load(tmp_path / "model").solver == "uniform"
    estimator = dmkl.MKFDA(solver="uniform")
    result = dmkl.search(estimator, K, y, {"p": [1.0, 2.0], "lam": [1e-2, 1.0]}, cv=3, refit=False, baselines="none")
    assert result.scores.attrs["solver"] == "uniform"
    # Twelve fits share the passes over the kernels; one pass is for scores, one for statistics.
    assert result.n_passes_ <= 5
    with pytest.raises(InputError, match="'stacked', 'factors' or 'uniform', got 'laziest'"):
        dmkl.MKFDA(solver="laziest").fit(K[train, train], y[train])


def test_the_former_name_of_the_learners_gives_the_same_classes():
    sys.modules.pop("dmkl.estimators", None)  # the warning comes at the first import
    with pytest.warns(FutureWarning, match="dmkl.estimators is called dmkl.learners now"):
        former = importlib.import_module("dmkl.estimators.learner")
    assert former.KernelClassifier is KernelClassifier
    with pytest.raises(ImportError, match="nothing"):
        importlib.import_module("dmkl.estimators.nothing")
