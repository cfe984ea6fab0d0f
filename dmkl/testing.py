"""Checks for those who write learners: `check_learner`, as scikit-learn's `check_estimator`."""

from __future__ import annotations

import io
import tempfile
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cached_property
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr
from sklearn.base import clone, is_regressor
from sklearn.exceptions import NotFittedError

import dmkl
from dmkl.arrays import Array, Float
from dmkl.cli.learners import learners
from dmkl.cli.main import main
from dmkl.errors import InputError
from dmkl.kernelset import KernelSet
from dmkl.learners.learner import KernelLearner
from dmkl.searching.grid import as_grid


def check_learner(learner: type[KernelLearner] | KernelLearner) -> None:
    """Check that a class of learners does what all learners of dmkl do, on a few samples with three kernels.

    ======================== ==========================================================================================
    parameters               the constructor keeps them as they are, `fit` does not change them, a clone has them too
    fit                      sets the attributes that all models have, with names that end in _; again, and after a fit
                             to other rows, it gives the same; refuses wrong labels
    prediction               does not depend on the other rows; contributions and the intercept add up to the scores;
                             of two classes there is one score
    search                   its predictions and scores are those of a model fitted to the same rows
    weights of samples       2 is a repeated row, for a learner without steps, and 0 one that is left out; or they are
                             refused
    tasks                    each has the scores that it has alone, to which contributions add up, and its own values of
                             `traits.by_problem`; a sample with an unknown label is left out; or they are refused
    files                    a loaded model has the same attributes, and predicts the same to the last bit
    command line             `dmkl fit` fits the same model; parameters that are numbers, texts or truths are options
    state of a search        an interrupted search continues, and ends as one that was not interrupted
    ======================== ==========================================================================================

    Parameters
    ----------
    learner
        The class, whose parameters have their defaults, or a learner with others (the command line is then left out).

    Raises
    ------
    AssertionError
        If something is otherwise: what, and for which learner. Errors of the learner itself are raised as they are.

    Examples
    --------
    >>> import dmkl
    >>> from dmkl.testing import check_learner
    >>> check_learner(dmkl.EasyMKL)
    """
    given: Any = learner() if isinstance(learner, type) else learner
    with tempfile.TemporaryDirectory(prefix="dmkl-") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a fit of a few samples may well warn
        case = _Case(given, Path(folder))
        checks = [_check_parameters, _check_fit, _check_prediction, _check_weights, _check_files]
        checks += [_check_search, _check_tasks, _check_state_of_search] if given.traits.needs_labels else []
        checks += [_check_command_line] if isinstance(learner, type) else []
        for check in checks:
            check(case)


_M, _NAMES = 42, ["near", "far", "noise"]
_TRAIN, _TEST = np.flatnonzero(np.arange(_M) % 4), np.flatnonzero(np.arange(_M) % 4 == 0)


@dataclass(frozen=True)
class _Case:
    learner: KernelLearner
    folder: Path

    def __post_init__(self) -> None:
        samples = [f"s{k:02}" for k in range(_M)]
        dmkl.create(self.folder / "set", self.kernels, names=_NAMES, samples=samples, labels=self.y)

    @cached_property
    def kernels(self) -> Float:
        """(3, m, m) of positive entries: two related to the classes and one of noise."""
        rng = np.random.default_rng(0)
        X = np.eye(4)[np.arange(_M) % 3] + 0.35 * rng.standard_normal((_M, 4))
        tables = X, X[:, :2], rng.standard_normal((_M, 4))
        squares = [((table[:, None] - table) ** 2).sum(axis=2) for table in tables]
        return np.array([np.exp(-distances / np.median(distances)) for distances in squares])

    @cached_property
    def y(self) -> Array:
        """Three classes, or numbers that follow from them."""
        classes = np.arange(_M) % 3
        noise = np.random.default_rng(1).standard_normal(_M)
        return classes + 0.3 * noise if self.is_regression else np.array(["ant", "bee", "cat"])[classes]

    @cached_property
    def tasks(self) -> Array:
        """Two columns of 0 and 1, or of numbers."""
        numbers = np.random.default_rng(2).standard_normal(_M)
        columns = (self.y, -self.y + numbers) if self.is_regression else (self.y == "ant", self.y != "cat")
        return np.stack(columns, axis=1).astype(np.float64)

    @property
    def is_regression(self) -> bool:
        return bool(is_regressor(self.learner))

    @property
    def K(self) -> KernelSet:
        return dmkl.open(self.folder / "set")

    @property
    def new(self) -> KernelSet:
        """K[test, train]."""
        return self.K[_TEST, _TRAIN]

    def fitted(self, y: Any = None) -> Any:
        """The learner, fitted to the training rows, with the labels of a problem or those given."""
        y = self.y if y is None else y
        return self.copy().fit(self.K[_TRAIN, _TRAIN], y[_TRAIN])

    def copy(self, **given: Any) -> Any:
        """A copy of the learner, with other parameters."""
        return clone(self.learner).set_params(**given)

    def expect(self, holds: Any, rule: str) -> None:
        """Raise AssertionError unless a rule holds."""
        if not holds:
            msg = f"{type(self.learner).__name__}: {rule}"
            raise AssertionError(msg)

    def expect_close(self, found: npt.ArrayLike, expected: npt.ArrayLike, tolerance: float, rule: str) -> None:
        """Raise AssertionError unless numbers differ by at most a share of the largest one."""
        found, expected = np.asarray(found, dtype=np.float64), np.asarray(expected, dtype=np.float64)
        self.expect(found.shape == expected.shape, f"{rule}; got shapes {found.shape} and {expected.shape}")
        error = np.abs(found - expected).max() / max(np.abs(expected).max(), 1e-300)
        self.expect(error <= tolerance, f"{rule}; they differ by {error:.2g} of the largest, allowed are {tolerance:g}")

    def expect_refused(self, rule: str, kind: type[Exception], work: Callable[..., Any], *arguments: Any) -> None:
        """Raise AssertionError unless work raises an error of this kind."""
        try:
            work(*arguments)
        except kind:
            return
        self.expect(False, rule)


def _scores(model: Any, K: KernelSet) -> xr.DataArray:
    """Decision values, or predictions of a regression."""
    scores: xr.DataArray = model.predict(K, as_xarray=True) if is_regressor(model) else model.decision_function(K)
    return scores


def _check_parameters(case: _Case) -> None:
    learner = case.learner
    kind, names = type(learner), learner.get_params(deep=False)
    case.expect(vars(learner).keys() == names.keys(), "the constructor sets an attribute for each parameter, no others")
    for name in names:
        for value in (signature(kind).parameters[name].default, object()):
            try:
                kept = getattr(kind(**{**names, name: value}), name)
            except Exception as error:  # of a check in the constructor
                kept = error
            rule = f"the constructor keeps {name} as it is, and fit checks it by traits.rules"
            case.expect(kept is value, f"{rule}; of {value!r:.60} it made {kept!r:.60}")
    case.expect(repr(clone(learner)) == repr(learner), "a clone has the same parameters")
    rule = "its name is that of no other learner, since files name the class of a model"
    case.expect(getattr(dmkl, kind.__name__, kind) is kind, rule)
    before = repr(learner.get_params())
    case.expect(repr(case.fitted().get_params()) == before, "fit leaves the parameters as they are")


def _check_fit(case: _Case) -> None:
    case.expect_refused("predict before fit raises NotFittedError", NotFittedError, case.copy().predict, case.new)
    model, again, rows = case.fitted(), case.fitted(), _TRAIN[3:]
    once_more = case.copy().fit(case.K[rows, rows], case.y[rows]).fit(case.K[_TRAIN, _TRAIN], case.y[_TRAIN])
    fitted = case.learner.traits.fitted
    others = [name for name in vars(model).keys() - vars(case.learner).keys() if name.strip("_") == name]
    case.expect(not others, f"fit sets attributes whose names end in _, which files keep; others are {others}")
    missing = [name for name, declared in fitted.items() if declared.needed and not hasattr(model, name)]
    case.expect(not missing, f"fit sets all attributes that traits.fitted calls needed, and {missing} are missing")
    case.expect(model.weights_["kernel"].values.tolist() == list(model.kernel_names_), "weights_ are those of kernels")
    for name in ("weights_", "dual_coef_"):
        case.expect(np.isfinite(getattr(model, name)).all(), f"{name} are finite")
    _expect_same(case, again, model, "a second fit")
    _expect_same(case, once_more, model, "a learner that was fitted to other rows before")
    if case.learner.traits.needs_labels:
        classes = [] if case.is_regression else np.unique(case.y).tolist()
        case.expect(model.classes_.tolist() == classes, "classes_ are the labels in order, of a regression none")
        few = case.K[_TRAIN, _TRAIN], case.y[_TRAIN][:-1]
        case.expect_refused("fit refuses labels of too few samples", InputError, case.copy().fit, *few)


def _expect_same(case: _Case, other: Any, model: Any, what: str) -> None:
    """Raise AssertionError unless the fitted attributes of another model are those of this one."""
    for name in [name for name in vars(model) if name.endswith("_")]:
        value, found = getattr(model, name), getattr(other, name)
        if isinstance(value, xr.DataArray | xr.Dataset):
            case.expect(value.identical(found), f"{name} of {what} is the same")
        elif name not in ("features_", "statistics_", "decider_"):
            same = np.array_equal(value, found) or repr(value) == repr(found)
            case.expect(same, f"{name} of {what} is the same, got {found!r:.60} for {value!r:.60}")


def _check_prediction(case: _Case) -> None:
    model = case.fitted()
    scores, few = _scores(model, case.new), [3, 1]
    case.expect(scores["sample"].values.tolist() == case.new.samples.tolist(), "scores have the names of the samples")
    of_few = _scores(model, case.K[_TEST[few], _TRAIN])
    case.expect_close(of_few, scores[few], 1e-9, "scores of a sample do not depend on the others")
    case.expect(len(model.predict(case.new)) == len(_TEST), "predict returns a value for each sample")
    if case.learner.traits.needs_labels:
        _check_contributions(case, model, scores)
        if not case.is_regression:
            of_two = case.fitted(case.y == "ant")
            case.expect(_scores(of_two, case.new).shape == (len(_TEST),), "of two classes a sample has one score")
            case.expect({*of_two.predict(case.new).tolist()} <= {True, False}, "labels are those of training")


def _check_contributions(case: _Case, model: Any, scores: xr.DataArray) -> None:
    shares = model.contributions(case.new)
    if "pair" not in shares.dims:  # votes of pairs are no sums
        total = shares.sum("kernel") + shares.coords.get("intercept", 0.0)
        case.expect_close(total, scores, 1e-10, "contributions and the intercept add up to the scores")


def _search(case: _Case, **options: Any) -> Any:
    """A search of one point on the fold of training and test rows."""
    parameters = case.learner.get_params(deep=False).items()
    point = next(({name: [value]} for name, value in parameters if isinstance(value, str | int | float)), None)
    return dmkl.search(case.copy(), case.K, case.y, point, [(_TRAIN, _TEST)], **options)


def _check_search(case: _Case) -> None:
    model, result = case.fitted(), _search(case)
    if not case.learner._judges:
        column = result.predictions["prediction" if case.is_regression else "score"]
        case.expect_close(column, _scores(model, case.new), 1e-6, "a search scores rows as a fitted model does")
    score = model.score(case.new, case.y[_TEST])
    case.expect_close(result.best_score_, score, 1e-6, "the score of a search is that of a fitted model")


def _check_weights(case: _Case) -> None:
    traits, twice = case.learner.traits, np.ones(len(_TRAIN))
    twice[:3] = 2.0
    K, y = case.K[_TRAIN, _TRAIN], case.y[_TRAIN]
    try:
        case.learner._check_weights()
    except InputError:
        rule = "fit refuses sample_weight, as _check_weights does"
        return case.expect_refused(rule, InputError, case.copy().fit, K, y, twice)
    given = {"steps": ()} if "steps" in case.learner.get_params() else {}
    if traits.weights_are_copies:
        weighted = _scores(case.copy(**given).fit(K, y, twice), case.new)
        copies = np.concatenate([_TRAIN, _TRAIN[:3]])
        square, cross = case.kernels[:, copies[:, None], copies], case.kernels[:, _TEST[:, None], copies]
        samples = [f"c{k}" for k in range(len(copies))]
        repeated = case.copy(**given).fit(dmkl.create(None, square, samples=samples, names=_NAMES), case.y[copies])
        rows = [f"t{k}" for k in range(len(_TEST))]
        expected = _scores(repeated, dmkl.create(None, cross, samples=rows, train_samples=samples, names=_NAMES))
        case.expect_close(weighted, expected, 2e-2, "a sample of weight 2 counts as two copies of it")
    else:
        little, plain = np.where(twice > 1, 1e-3, 1.0), _scores(case.copy(**given).fit(K, y), case.new)
        of_little = _scores(case.copy(**given).fit(K, y, little), case.new)
        case.expect(not np.allclose(of_little, plain), "weights of samples have an effect")
    kept = _TRAIN[3:]
    of_all = case.copy(**given).fit(K, y, np.where(twice > 1, 0.0, 1.0))
    of_kept = case.copy(**given).fit(case.K[kept, kept], case.y[kept], np.ones(len(kept)))
    _expect_same(case, of_all, of_kept, "a fit with samples of weight 0, which are left out,")


def _check_tasks(case: _Case) -> None:
    tasks = case.tasks
    try:
        model = case.fitted(tasks)
    except InputError:
        return
    both = _scores(model, case.new)
    _check_contributions(case, model, both)
    searched = [name for name in as_grid(None, case.learner) if name in case.learner.traits.by_problem]
    given = {name: getattr(case.learner, name) for name in searched}
    of_each = {name: [value, value] for name, value in given.items() if isinstance(value, int | float)}
    rule = f"a task has its own value of {' and '.join(of_each)}, as a search chooses it"
    rule = f"{rule}; otherwise leave it out of traits.by_problem"
    try:
        each = case.copy(**of_each).fit(case.K[_TRAIN, _TRAIN], tasks[_TRAIN])
    except Exception as error:
        msg = f"{type(case.learner).__name__}: {rule}; got {error!r}"
        raise AssertionError(msg) from error
    case.expect_close(_scores(each, case.new), both, 1e-6, rule)
    case.expect(both.dims[1] == ("target" if case.is_regression else "task"), "scores of tasks are over their names")
    rows = _TRAIN
    if case.learner.traits.takes_unknown_labels:
        rows, unknown = _TRAIN[5:], tasks.copy()
        unknown[_TRAIN[:5], 0] = np.nan
        both = _scores(case.fitted(unknown), case.new)
    alone = _scores(case.copy().fit(case.K[rows, rows], tasks[rows, :1]), case.K[_TEST, rows]).values.reshape(-1)
    case.expect_close(both.values[:, 0], alone, 2e-2, "a task has the scores that it has alone on its samples")


def _check_files(case: _Case) -> None:
    model, path = case.fitted(), case.folder / "model"
    model.save(path)
    loaded = dmkl.load(path)
    case.expect(type(loaded) is type(model), "a loaded model is of the same class")
    names = [name for name in vars(model) if name.endswith("_")]
    lost = [name for name in names if not hasattr(loaded, name)]
    case.expect(not lost, f"a loaded model has all fitted attributes, and lacks {', '.join(lost)}")
    _expect_same(case, loaded, model, "a loaded model")
    case.expect(_scores(loaded, case.new).identical(_scores(model, case.new)), "a loaded model gives the same scores")
    case.expect(np.array_equal(loaded.predict(case.new), model.predict(case.new)), "and the same predictions")


def _check_command_line(case: _Case) -> None:
    class_name, path = type(case.learner).__name__, case.folder / "by-command"
    names = [name for name, declared in learners().items() if declared.name == class_name]
    case.expect(names, f"the command line lists the class, by --model; it knows {', '.join(learners())}")
    given = ["fit", str(case.folder / "set"), str(path), "--model", names[0], "--cluster", "threads"]
    for name, value in case.learner.get_params(deep=False).items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            given.append(f"--{option}" if value else f"--no-{option}")
        elif isinstance(value, str | int | float):
            given += [f"--{option}", str(value)]
    printed = io.StringIO()
    with redirect_stdout(printed), redirect_stderr(printed):
        status = main(given)
    rule = f"dmkl fit --model {names[0]} takes the parameters as options, and printed {printed.getvalue()}"
    case.expect(status == 0, rule)
    model = case.copy().fit(case.K)
    case.expect_close(dmkl.load(path).weights_, model.weights_, 1e-9, "dmkl fit learns the weights that fit learns")


class _Interruption(BaseException):
    """The end of a search before its result."""


def _check_state_of_search(case: _Case) -> None:
    interrupts = [True]

    def score(estimator: Any, X: Any, y: Array) -> float:
        if len(y) == len(_TEST) and interrupts:
            interrupts.clear()
            raise _Interruption
        predicted = estimator.predict(X)
        return -float(np.mean((predicted - y) ** 2)) if case.is_regression else float(np.mean(predicted == y))

    options: Any = {"scoring": score, "baselines": "none"}
    state = case.folder / "state"
    try:
        _search(case, **options, state=state)
    except _Interruption:
        pass
    case.expect(any(state.iterdir()), "an interrupted search keeps its state")
    continued, whole = _search(case, **options, state=state), _search(case, **options)
    weights = continued.scores["weight"], whole.scores["weight"]
    case.expect_close(*weights, 0.0, "a continued search has the same weights")
    case.expect_close(continued.best_score_, whole.best_score_, 0.0, "a continued search has the same scores")
