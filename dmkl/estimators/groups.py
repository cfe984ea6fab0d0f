"""Group-sensitive multiple kernel learning."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import xarray as xr

from dmkl.arrays import Array, Float, plain_repr
from dmkl.errors import refuse
from dmkl.estimators.checks import check_choice, check_count, check_positive
from dmkl.estimators.decisions import Decision
from dmkl.estimators.learner import KernelClassifier
from dmkl.estimators.plan import (
    ClassWeight,
    FitOutcome,
    Loss,
    Preparation,
    ScoreFunction,
    TrainingSet,
    check_hinge,
    features_of,
)
from dmkl.estimators.predicting import Ask, NewRows
from dmkl.features.cross import TrainingFeatures, row_features
from dmkl.kernelset import KernelSet
from dmkl.numerics.fisher import Targets
from dmkl.numerics.grouping import (
    Counts,
    FeatureGroups,
    GivenGroups,
    KernelGroups,
    SampleGroups,
    group_by_kernel,
    group_by_kmeans,
    group_by_plsa,
    groups_from_arrays,
    one_hot,
)
from dmkl.passes.execute import machine
from dmkl.solvers.groups import GroupOutcome, GroupProblem, WeightForm, best_of, gs_mkl
from dmkl.solvers.in_memory import InMemory
from dmkl.solvers.jobs import Job
from dmkl.solvers.jobs import best_of as run_best_of
from dmkl.solvers.outcome import Status, worst
from dmkl.solvers.requests import CombinedEntries, CombinedProduct, EachProduct, Solver, Task
from dmkl.stores import Kernels

__all__ = ["GSMKL", "Grouping"]

Index = npt.NDArray[np.intp]
Grouping = Literal["kernel", "kmeans", "plsa"]


class _Grouped(NamedTuple):
    """The groups of the training samples, and what defines the groups of new samples.

    Parameters
    ----------
    kernels
        The kernels that the groups were made from.
    given
        The group of each sample by name, if groups are given.
    """

    groups: SampleGroups
    kernels: Index
    given: Mapping[str, Any] | None = None


class GSMKL(KernelClassifier):
    """Group-sensitive multiple kernel learning: each group of samples has its own kernel weights.

    With c(i) the group of sample i and β_m^g the weight of kernel m for group g, a classifier for each class is learnt
    on

        K(x_i, x_j) = Σ_m β_m^{c(i)} β_m^{c(j)} K_m(x_i, x_j),

    together with the weights, by descent in the parameters of a softmax over the kernels of each group.

    Parameters
    ----------
    C
        SVM penalty C > 0 on margin violations.
    n_groups
        Number of groups in each class, or a mapping from classes to numbers. 1 is MKL with weights for each class of
        samples (see Notes, and `across`). A search over several numbers makes such a mapping: each class chooses its
        number on the validation rows. "samples": each sample is a group, and a new sample has the weights of the
        nearest one; training samples keep their own group, so that the leak of `regroup` remains.
    grouping
        Clustering of the samples of a class: "kernel" (kernel k-means on the mean kernel), "kmeans" or "plsa" (on the
        features that the kernels were built from). Or given groups such as sites or batches: a mapping from the name
        of each sample to its group, also of samples to predict (or give theirs as ``predict(..., groups=)``);
        `n_groups`, `across` and `regroup` then have no effect.
    loss
        "hinge" (support vector machines), or "square" (regularized least squares: a group-sensitive Fisher
        discriminant), whose ridge is `lam`.
    lam
        Ridge λ > 0 of the square loss.
    class_weight
        As in `MKSVM`, for the hinge loss only. The groups do not depend on it.
    decision
        As in `MKSVM`.
    weighting
        "root": β = √γ with γ the softmax, so that Σ_m (β_m^g)² = 1; "softmax": the paper's β = γ.
    across
        Make `n_groups` groups of all samples together, instead of groups inside each class. The groups then contain no
        more information about the class in training than for new samples, and n_groups=1 is canonical MKL.
    regroup
        Assign training samples to groups as if they were new samples. The paper's groups lie inside classes, so that a
        classifier can infer the class from the group in training, but not for new samples, whose group is only
        estimated (regroup=False shows the effect). For n_groups=1 regrouping removes this leak, for larger numbers most
        of it: the groups of the other samples of a class still depend on the labels.
    feature
        The feature table for "kmeans" and "plsa"; by default the tables of all kernels side by side.
    restarts
        Number of descents from different weights, the first from equal ones; the lowest objective is kept.
    spread
        Standard deviation of the random parameters a and b that other descents start from: small, such as 0.01, for
        the paper's "small random numbers".
    random_state
        Seed of groups and restarts.
    steps
        As in `MKSVM`. Centering changes the model if there are several groups, since a composite of centered kernels is
        not the centered composite; ("multiplicative",) does without. Centering is the default because it is more
        accurate: on Flower17 by 1 to 2 points with groups inside classes, and equal across them
        (`pipelines/README.md`).
    tol, max_iter
        As in `MKSVM`; `tol` is the relative decrease over five steps at which a descent ends.

    Attributes
    ----------
    weights_ : DataArray
        β, over kernel, group and class (the second of two classes; task for a multilabel problem).
    groups_ : DataArray
        The group of each training sample.
    group_class_ : DataArray
        The class whose samples made each group; 0 of groups across classes; the name of a given group.
    dual_coef_, intercept_
        As in `MKSVM`.
    objective_ : float or DataArray
        The training objective W; it fell in every step of `history_`.
    gap_ : float or DataArray
        NaN: the problem is not convex, and there is no bound for the distance to the optimum.
    converged_, status_ : bool, str
        Whether every descent ended before `max_iter`, and advice.

    Notes
    -----
    Source: Yang, Li, Tian, Duan, Gao, ICCV 2009, Algorithm 1. A new sample gets the group whose center is nearest
    (whose topic is most likely), among the groups of all classes.

    Section 5.3 chooses the number of groups of each class, from 1 to 5, on validation rows, and does not specify the
    fits. A search uses fits with the same number for all classes, so that the grid does not grow with the number of
    classes: class k takes the number with the best average precision of its one-against-rest scores. The model with
    these numbers is fitted and tested afterwards.

    One group under "root" is canonical MKL with the weights β_m², ‖β²‖_1 = 1. Under "softmax" it is not: the combined
    weights are β_m² with Σβ_m = 1, every single kernel is a local minimum, and the objective is neither convex nor
    concave (see `dmkl.solvers.groups`).

    Examples
    --------
    >>> import dmkl
    >>> model = dmkl.GSMKL(C=1.0, n_groups=2)
    """

    def __init__(
        self,
        C: float = 1.0,
        n_groups: Counts = 2,
        grouping: Grouping | Mapping[str, Any] = "kernel",
        loss: Loss = "hinge",
        *,
        lam: float = 1e-2,
        weighting: WeightForm = "root",
        across: bool = False,
        regroup: bool = True,
        feature: str | None = None,
        restarts: int = 1,
        spread: float = 1.0,
        random_state: int = 0,
        class_weight: ClassWeight = None,
        decision: Decision | None = None,
        steps: str | Sequence[str] = ("center", "multiplicative"),
        tol: float = 1e-4,
        max_iter: int = 100,
    ) -> None:
        self.C = C
        self.n_groups = n_groups
        self.grouping = grouping
        self.loss = loss
        self.lam = lam
        self.weighting = weighting
        self.across = across
        self.regroup = regroup
        self.feature = feature
        self.restarts = restarts
        self.spread = spread
        self.random_state = random_state
        self.class_weight = class_weight
        self.decision = decision
        self.steps = steps
        self.tol = tol
        self.max_iter = max_iter

    # --- fitting -------------------------------------------------------------------------------------------------

    _HAS_INTERCEPT = True
    _TAKES_UNKNOWN_LABELS = False
    _TAKES_WEIGHTS = True
    _STATE = (*KernelClassifier._STATE, "converged_", "n_trainings_")

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if not isinstance(self.grouping, Mapping):
            check_choice("grouping", self.grouping, ("kernel", "kmeans", "plsa"))
        check_choice("loss", self.loss, ("hinge", "square"))
        check_choice("weighting", self.weighting, ("root", "softmax"))
        counts = self.n_groups.values() if isinstance(self.n_groups, Mapping) else [self.n_groups]
        for count in counts:
            if count != "samples":
                check_count("n_groups", count)
        check_count("random_state", self.random_state, least=0)
        check_count("restarts", self.restarts)
        check_count("max_iter", self.max_iter)
        check_positive("tol", self.tol)
        check_positive("spread", self.spread)
        price = "C" if self.loss == "hinge" else "lam"
        check_positive(price, getattr(self, price))

    def _check_weights(self) -> None:
        check_hinge(self.loss)

    def _of_classes(self, kind: str) -> tuple[str, ...]:
        # Two classes are a single problem with one number; groups across classes have no class.
        return ("n_groups",) if kind == "multiclass" and not self._one_rule(kind) else ()

    def _check_data(self, K: KernelSet, targets: Targets) -> None:
        super()._check_data(K, targets)
        if not isinstance(self.n_groups, Mapping):
            return
        if self._one_rule(targets.kind):
            refuse(f"groups across classes have one number, and n_groups is {plain_repr(self.n_groups)}; give a number")
        missing = sorted(set(map(str, targets.classes.tolist())) - set(map(str, self.n_groups)))
        if missing:
            refuse(f"n_groups has no number for class {missing[0]!r}; give one for each class, or a single number")

    def _method(self) -> InMemory:
        return InMemory()

    def _preparation(self, data: TrainingSet) -> Preparation:
        # Groups do not depend on C or λ of the classifiers.
        choices = (self.n_groups, self.grouping, self.across, self.regroup, self.feature, self.random_state)
        key = repr(choices)
        return Preparation(key, self._groups(data))

    def _groups(self, data: TrainingSet) -> Solver[_Grouped]:
        """The groups of the training samples."""
        kernels = np.arange(len(data.kernels)) if data.fit.kernels is None else data.fit.kernels
        if isinstance(self.grouping, Mapping):
            return _Grouped(GivenGroups.of_samples(self.grouping, data.kernels.samples), kernels, self.grouping)
        targets = data.problems.targets
        one_rule = self._one_rule(targets.kind)
        if one_rule:
            classes: Array | None = None
        elif targets.kind == "binary":
            classes = (targets.problems[0][:, 0] > 0).astype(np.intp)
        else:
            classes = np.argmax(targets.problems[0], axis=1)
        counts = self.n_groups
        if isinstance(counts, Mapping):
            by_text = {str(label): count for label, count in counts.items()}
            counts = {k: by_text[str(label)] for k, label in enumerate(targets.classes.tolist())}
        seed, anew = self.random_state, self.regroup and not one_rule and counts != "samples"
        if self.grouping == "kernel":
            mean = _mean_weights(kernels, data.training.n_kernels)
            diagonal = data.training.square.diagonal()
            assert diagonal is not None  # symmetric sources have a diagonal
            squares, m = mean @ diagonal, data.training.n_train
            # Each round of k-means multiplies the mean kernel, in memory if those of all training sets fit.
            whole = _HELD * 8 * m * m <= machine().task_bytes
            matrix: Float | None = (yield CombinedEntries(mean, np.arange(m))) if whole else None
            by_kernel = group_by_kernel(squares, classes, counts, seed=seed)
            groups: KernelGroups = yield from _by_mean(by_kernel, mean, matrix)
            if anew:
                groups = yield from _by_mean(groups.as_new(squares), mean, matrix)
            return _Grouped(groups, kernels)
        table = self._table(features_of(data.kernels), data.names)
        group = group_by_kmeans if self.grouping == "kmeans" else group_by_plsa
        made: FeatureGroups = yield Task("group", partial(group, seed=seed), (table, classes, counts))
        return _Grouped(made.as_new(table) if anew else made, kernels)

    def _one_rule(self, kind: str) -> bool:
        """Whether groups do not depend on the classes, as in multilabel problems, whose samples have several."""
        return self.across or kind == "multilabel" or isinstance(self.grouping, Mapping)

    def _table(self, features: TrainingFeatures | str, kernels: Sequence[str]) -> Float:
        """The features for grouping, (samples, columns): the table `feature`, or those of these kernels."""
        if isinstance(features, str):
            refuse(f"grouping={self.grouping!r} needs features, and there are none: {features}; take grouping='kernel'")
        if self.feature is not None and self.feature not in features.tables:
            listed = ", ".join(map(repr, features.tables))
            refuse(f"there is no feature table {self.feature!r} to group by; the tables are {listed}")
        names = features.select(kernels).tables if self.feature is None else [self.feature]
        tables = [features.tables[name] for name in names]
        return np.concatenate([t.read(slice(0, t.shape[0])).astype(np.float64) for t in tables], axis=1)

    def _jobs(self, data: TrainingSet, prepared: _Grouped) -> list[Job]:
        groups, problems = prepared.groups, data.problems
        square = self.loss == "square"
        columns = [column for h in problems.targets.problems for column in h.T]

        def solver_of(k: int) -> partial[Solver[GroupOutcome]]:
            problem = GroupProblem(
                columns[k] if square else problems.h[k],
                groups.labels,
                groups.n_groups,
                C=None if square else self._prices(data, k, self.C),
                lam=self.lam if square else None,
                name=problems.title(k),
            )
            return partial(self._descents, problem, data.n_kernels)

        return data.jobs(solver_of)

    def _descents(self, problem: GroupProblem, n_kernels: int) -> Solver[GroupOutcome]:
        """Descents from several weights, the first from equal ones; returns the lowest objective."""
        seeds = [None, *(self.random_state + restart for restart in range(1, self.restarts))]
        run = partial(gs_mkl, problem, n_kernels, weighting=self.weighting, tol=self.tol, max_iter=self.max_iter)
        return run_best_of([run(seed=seed, spread=self.spread) for seed in seeds], best_of)

    def _set_attributes(self, fit_outcome: FitOutcome) -> None:
        outcomes = fit_outcome.outcomes
        self._prepared = fit_outcome.prepared
        self.converged_ = outcomes[worst(outcomes)].status is Status.SMALL_DECREASE
        self.n_trainings_ = sum(outcome.trainings for outcome in outcomes if isinstance(outcome, GroupOutcome))
        # The first entry of the history is the objective before the first step.
        self.history_ = self.history_.assign_coords(iteration=self.history_.iteration - 1)
        self.n_iter_ -= 1
        self._label_groups()

    def _label_groups(self) -> None:
        made: SampleGroups = self._prepared.groups
        self.groups_ = xr.DataArray(made.labels, dims=("sample",), coords={"sample": self.train_samples_}, name="group")
        classes = made.classes if self._one_rule(self.kind_) else self.classes_[made.classes]
        self.group_class_ = xr.DataArray(
            classes, dims=("group",), coords={"group": np.arange(made.n_groups)}, name="class"
        )

    # --- predicting ----------------------------------------------------------------------------------------------

    def _scores(self, function: ScoreFunction, new: KernelSet, prepared: _Grouped) -> Solver[Float]:
        """f(x) = Σ_m β_m^{c(x)} Σ_i β_m^{c(i)} u_i K_m(x, x_i) + b of new rows."""
        shares = yield from self._shares(function, new, prepared)
        return np.asarray(shares.sum(axis=0) + function.bias)

    def _shares(self, function: ScoreFunction, new: KernelSet, prepared: _Grouped) -> Solver[Float]:
        groups = yield from self._groups_of(new, prepared)
        made = prepared.groups
        n_groups, n_columns = made.n_groups, function.dual.shape[1]
        # u of each class split by groups, (samples, classes · groups); columns without support vectors are zero.
        block = (function.dual[:, :, None] * one_hot(made.labels, n_groups)[:, None, :]).reshape(len(function.dual), -1)
        used = np.flatnonzero(block.any(axis=0))
        products = yield EachProduct(block[:, used])
        parts = np.zeros((*products.shape[:2], block.shape[1]))
        parts[:, :, used] = products
        parts = parts.reshape(*products.shape[:2], n_columns, n_groups)
        by_sample = function.weights[:, groups, :]  # β_m^{c(x)}: (kernels, rows, classes)
        return np.asarray(np.einsum("nrc,nrcg,ngc->nrc", by_sample, parts, function.weights, optimize=True))

    def _solve_for_new_rows(self, K: Kernels | None, ask: Ask, *, groups: Any = None, **new: Any) -> NewRows:
        if groups is None:
            return super()._solve_for_new_rows(K, ask, **new)
        given = {**(self._prepared.given or {}), **groups}

        def ask_with_groups(function: ScoreFunction, rows: KernelSet, prepared: _Grouped) -> Solver[Float]:
            return ask(function, rows, prepared._replace(given=given))

        return super()._solve_for_new_rows(K, ask_with_groups, **new)

    def groups_of(self, K: KernelSet) -> Index:
        """The group of each row sample, by the rule for new samples."""
        self._check_fitted()
        chosen, used = self._match_kernels(K)
        (labels,) = self._solve_through(chosen, used, [self._groups_of(chosen, self._prepared)])
        groups: Index = labels
        return groups

    def _groups_of(self, new: KernelSet, prepared: _Grouped) -> Solver[Index]:
        made, kernels, given = prepared
        if isinstance(made, GivenGroups):
            return made.labels_of(given or {}, new.samples)
        if isinstance(made, KernelGroups):
            groups: Index = yield from _by_mean(made.labels_of_new(), _mean_weights(kernels, len(new)))
            return groups
        assert isinstance(made, FeatureGroups)
        return made.labels_of(self._table(row_features(new), [new.names[j] for j in kernels]))

    def _kernels_used(self) -> list[str]:
        # Groups are defined by all kernels.
        return list(self.kernel_names_)

    # --- saving --------------------------------------------------------------------------------------------------

    def _state(self) -> dict[str, Any]:
        groups = {key: value.tolist() for key, value in self._prepared.groups.arrays().items()}
        return {**super()._state(), "groups": groups}

    def _set_state(self, state: dict[str, Any]) -> None:
        groups = state.pop("groups")
        super()._set_state(state)
        made = groups_from_arrays({key: np.array(value) for key, value in groups.items()})
        given = self.grouping if isinstance(self.grouping, Mapping) else None
        self._prepared = _Grouped(made, np.arange(len(self.kernel_names_)), given)
        self._label_groups()


def _mean_weights(kernels: Index, n_kernels: int) -> Float:
    """The weights of the mean of some kernels."""
    weights = np.zeros(n_kernels)
    weights[kernels] = 1.0 / len(kernels)
    return weights


_HELD = 32
"""Assumed number of training sets whose mean kernels are in memory together."""


def _by_mean(grouping: Generator[Float, Float, Any], weights: Float, matrix: Float | None = None) -> Solver[Any]:
    """Group by a combined kernel, which multiplies the blocks that `grouping` yields, in a pass for each.

    If the kernel is given as `matrix`, no passes are needed.
    """
    answer: Any = None
    while True:
        try:
            block = grouping.send(answer)
        except StopIteration as stop:
            return stop.value
        answer = matrix @ block if matrix is not None else (yield CombinedProduct(block, weights, exact=True))
