"""Kernel weights that depend on the sample: those of groups of samples, and localized weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import xarray as xr
from scipy.special import softmax

from dmkl.arrays import Array, Float, Index, check_choice, plain_repr
from dmkl.building import TrainingFeatures, features_of, training_features
from dmkl.errors import refuse
from dmkl.kernelset import Kernels, KernelSet
from dmkl.learners.checks import check_count, check_positive, one_for_each, one_of
from dmkl.learners.margin import WeightedMachines
from dmkl.learners.plan import FitOutcome, Loss, Part, ScoreFunction, TrainingSet, side_by_side
from dmkl.learners.predicting import Ask, match_kernels, solve_through
from dmkl.learners.traits import COUNT, TRUTH, WRITTEN_BY_CLASS, json_value, labeled_table
from dmkl.numerics.fisher import Targets, class_of
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
from dmkl.numerics.semidefinite import KernelFacts
from dmkl.passes.execute import machine
from dmkl.solvers.groups import GroupProblem, WeightForm, gs_mkl, localized_mkl
from dmkl.solvers.in_memory import InMemory
from dmkl.solvers.interface import CombinedEntries, CombinedProduct, EachProduct, Outcome, Solver, Status, Task, worst
from dmkl.solvers.jobs import Job, together
from dmkl.solvers.workspace import Prepared

Grouping = Literal["kernel", "kmeans", "plsa"]


class _Grouped(NamedTuple):
    """The groups of the training samples of some problems, and what defines the groups of new samples."""

    groups: tuple[SampleGroups, ...]  # Those of each problem, or one for all.
    kernels: Index  # The kernels that the groups were made from.
    given: Mapping[str, Any] | None = None  # The group of each sample by name, if groups are given.


@dataclass(eq=False, repr=False)
class LocalWeights(WeightedMachines, abstract=True):
    """Classifiers whose kernel weights depend on the sample, learnt by descent."""

    _: KW_ONLY
    tol: float = 1e-4

    traits = WeightedMachines.traits.but(weights_are_copies=False)

    def _method(self) -> InMemory:
        return InMemory()

    def _set_attributes(self, outcome: FitOutcome) -> None:
        # The first entry of the history is the objective before the first step.
        self.history_ = self.history_.assign_coords(iteration=self.history_.iteration - 1)
        self.n_iter_ -= 1

    def _scores(self, function: ScoreFunction, new: KernelSet, prepared: Any) -> Solver[Float]:
        shares = yield from self._shares(function, new, prepared)
        return np.asarray(shares.sum(axis=0) + function.bias)

    def _kernels_used(self) -> list[str]:
        # Groups and gating are functions of all kernels, whose weights are never zero.
        return list(self.kernel_names_)


@dataclass(eq=False, repr=False)
class GSMKL(LocalWeights):
    """Group-sensitive multiple kernel learning: each group of samples has its own kernel weights.

    With c(i) the group of sample i and β_m^g the weight of kernel m for group g, classifiers are learnt on

        K(x_i, x_j) = Σ_m β_m^{c(i)} β_m^{c(j)} K_m(x_i, x_j),

    together with the weights, by descent in the parameters of a softmax over the kernels of each group.

    Parameters
    ----------
    C, decision
        As in `MKSVM`.
    n_groups
        Number of groups in each class, or a mapping from classes to numbers. 1 is MKL with weights for each class of
        samples (see Notes, and `across`). A search over several numbers makes such a mapping: each class chooses its
        number on the validation rows. "samples": each sample is a group, and a new sample has the weights of the
        nearest one; training samples keep their own group, so that the leak of `regroup` remains. The classes of a
        task of a multilabel problem are its negatives 0 and positives 1; for several tasks also one of these for each.
    grouping
        Clustering of the samples of a class: "kernel" (kernel k-means on the mean kernel), "kmeans" or "plsa" (on the
        features that the kernels were built from). Or given groups such as sites or batches: a mapping from the name
        of each sample to its group, also of samples to predict (or give theirs as ``predict(..., groups=)``);
        `n_groups`, `across` and `regroup` then have no effect.
    loss
        "hinge" (support vector machines), or "square" (least squares with the ridge `lam`: a group-sensitive Fisher
        discriminant).
    lam
        Ridge λ > 0 of the square loss. For several problems also one for each.
    class_weight
        As in `MKSVM`, for the hinge loss only. The groups do not depend on it.
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
        (`pipelines/results/models.md`).
    tol, max_iter
        As in `MKSVM`; `tol` is the relative decrease over five steps at which a descent ends.

    Attributes
    ----------
    weights_ : DataArray
        β, over kernel, group and class (the second of two classes) or task, zero for groups that a task lacks.
    groups_ : DataArray
        The group of each training sample; by task if each has its own groups, −1 where its label is unknown.
    group_class_ : DataArray
        The class whose samples made each group; 0 of groups across classes; the name of a given group. By task if each
        has its own groups, −1 for groups that it does not have.
    dual_coef_, intercept_
        As in `MKSVM`.
    objective_ : float or DataArray
        The training objective W; it fell in every step of `history_`.
    gap_ : float or DataArray
        NaN: the problem is not convex, and there is no bound for the distance to the optimum.
    converged_, status_
        Whether every descent ended before `max_iter`, and advice.

    Notes
    -----
    Source: Yang, Li, Tian, Duan, Gao, ICCV 2009, Algorithm 1. A new sample gets the group whose center is nearest
    (whose topic is most likely), among the groups of all classes.

    Section 5.3 chooses the number of groups of each class, from 1 to 5, on validation rows. A search uses fits with the
    same number for all classes, so that the grid does not grow with their number: class k takes the number with the
    best average precision of its one-against-rest scores. Each task of a multilabel problem has groups of its positives
    and of its negatives, and chooses `n_groups` by its own scores.

    One group under "root" is canonical MKL with the weights β_m², ‖β²‖_1 = 1. Under "softmax" it is not, and every
    single kernel is a local minimum (see `dmkl.solvers.groups`).
    """

    C: float | Sequence[float] = 1.0
    n_groups: Counts | Sequence[Counts] = 2
    grouping: Grouping | Mapping[str, Any] = "kernel"
    loss: Loss = "hinge"
    _: KW_ONLY
    lam: float | Sequence[float] = 1e-2
    weighting: WeightForm = "root"
    across: bool = False
    regroup: bool = True
    feature: str | None = None
    restarts: int = 1
    spread: float = 1.0
    random_state: int = 0

    # --- fitting -------------------------------------------------------------------------------------------------

    traits = LocalWeights.traits.but(
        by_problem=(*LocalWeights.traits.by_problem, "n_groups"),
        of_rows=("covariates", "groups"),
        prepared_by=("n_groups", "grouping", "across", "regroup", "feature", "random_state"),
        rules={"weighting": one_of("root", "softmax"), "restarts": check_count, "spread": check_positive},
        fitted={
            **dict.fromkeys(("groups_", "group_class_"), WRITTEN_BY_CLASS),
            **{"converged_": json_value(TRUTH), "n_trainings_": json_value(COUNT)},
        },
    )

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self._given is None:
            check_choice("grouping", self.grouping, ("kernel", "kmeans", "plsa"))
        for counts in self._counts():
            for count in counts.values() if isinstance(counts, Mapping) else [counts]:
                if count != "samples":
                    check_count("n_groups", count)

    def _of_classes(self, kind: str) -> tuple[str, ...]:
        # Tasks choose for themselves; groups across classes have no class.
        return ("n_groups",) if kind in ("binary", "multiclass") and not self._one_rule() else ()

    def _check_data(self, K: KernelSet, targets: Targets) -> None:
        super()._check_data(K, targets)
        for counts in one_for_each("n_groups", self._counts(), len(targets.problems)):
            if isinstance(counts, Mapping) and self._one_rule():
                refuse(f"groups across classes have one number, and n_groups is {plain_repr(counts)}; give a number")
            _by_position(counts, targets.classes)

    def _prepare(self, data: TrainingSet, part: Part, files: Prepared) -> Solver[_Grouped]:
        """The groups of the training samples of some problems; those in the files are read."""
        kernels = data.positions
        rows = slice(None) if part.rows is None else part.rows
        if self._given is not None:
            given = GivenGroups.of_samples(self._given, data.kernels.samples[rows])
            return _Grouped((given,), kernels, self._given)
        targets, counts = data.problems.targets, self._counts()
        shared = targets.kind != "multilabel" or (self.across and len(counts) == 1)
        counts = one_for_each("n_groups", counts, len(targets.problems))
        members = part.members[: 1 if shared else None].tolist()
        made = {k: groups_from_arrays(arrays) for k in members if (arrays := files.load(k))}
        missing = [k for k in members if k not in made]
        if not missing:
            return _Grouped(tuple(made.values()), kernels)
        table, matrix = None, None
        mean = _mean_weights(kernels, part.training.n_kernels)
        if self.grouping != "kernel":
            features, needed_by = features_of(data.kernels), f"grouping={self.grouping!r}"
            table = _feature_table(needed_by, features, self.feature, data.names)[rows]
        # Each round of k-means multiplies the mean kernel, in memory if those of all training sets fit.
        elif _HELD * len(data.parts) * 8 * part.training.n_train**2 <= machine().task_bytes:
            matrix = yield CombinedEntries(mean, np.arange(part.training.n_train))

        def multiply(block: Float) -> Solver[Float]:
            """The product with the mean kernel: by a pass, unless it is in memory."""
            product: Float = matrix @ block if matrix is not None else (yield CombinedProduct(block, mean, exact=True))
            return product

        def groups_of(k: int) -> Solver[SampleGroups]:
            y = None if self.across else class_of(targets.problems[k])
            options: Any = {"y": y, "n_groups": _by_position(counts[k], targets.classes), "seed": self.random_state}
            anew = self.regroup and not self.across and counts[k] != "samples"
            if table is not None:
                group = group_by_kmeans if self.grouping == "kmeans" else group_by_plsa
                work = partial(group, **options), table, anew, partial(files.save, k)
                by_features: FeatureGroups = yield Task("group", _group_by_features, work)
                return by_features
            diagonal = part.training.square.diagonal()
            groups = yield from group_by_kernel(multiply, mean @ diagonal, **options)
            if anew:
                groups = groups.as_new((yield from multiply(groups.means)), mean @ diagonal)
            files.save(k, groups.arrays())
            return groups

        made |= zip(missing, (yield from together([groups_of(k) for k in missing])), strict=True)
        return _Grouped(tuple(made[k] for k in members), kernels)

    @property
    def _given(self) -> Mapping[str, Any] | None:
        """The group of each sample by name, if groups are given."""
        return self.grouping if isinstance(self.grouping, Mapping) else None

    def _one_rule(self) -> bool:
        """Whether groups do not depend on the classes."""
        return self.across or self._given is not None

    def _counts(self) -> Sequence[Counts]:
        """The numbers of groups of each task, or one for all problems."""
        counts: Any = self.n_groups
        return list(counts) if isinstance(counts, list | tuple | np.ndarray) else [counts]

    def _jobs(self, data: TrainingSet, prepared: Sequence[_Grouped]) -> list[Job]:
        problems, square = data.problems, self.loss == "square"
        columns = [column for h in problems.targets.problems for column in h.T]
        groups = _by_problem([part.members for part in data.parts], prepared)
        n_groups = max(made.n_groups for made in groups.values())
        ridges = self._of_problems("lam", len(problems)) if square else []

        def solver_of(k: int) -> partial[Solver[Outcome]]:
            problem = GroupProblem(
                columns[k] if square else problems.h[k],
                groups[k].labels,
                groups[k].n_groups,
                C=None if square else self._prices(data, k),
                lam=ridges[k] if square else None,
                name=problems.title(k),
            )
            facts = data.trainings[k].facts.select(data.fit.kernels)
            return partial(self._descents, problem, data.n_kernels, n_groups, facts)

        return data.jobs(solver_of)

    def _descents(self, problem: GroupProblem, n_kernels: int, n_groups: int, facts: KernelFacts) -> Solver[Outcome]:
        """The lowest of descents from several weights, the first equal ones; zeros fill its weights to `n_groups`."""
        seeds = [None, *(self.random_state + restart for restart in range(1, self.restarts))]
        run = partial(gs_mkl, problem, n_kernels, facts, weighting=self.weighting, tol=self.tol, max_iter=self.max_iter)
        outcomes = yield from together([run(seed=seed, spread=self.spread) for seed in seeds])
        outcome = min(outcomes, key=lambda outcome: outcome.objective)
        return replace(outcome, weights=np.pad(outcome.weights, ((0, 0), (0, n_groups - problem.n_groups))))

    def _set_attributes(self, fit_outcome: FitOutcome) -> None:
        outcomes = fit_outcome.outcomes
        self._prepared = fit_outcome.prepared
        self.converged_ = outcomes[worst(outcomes)].status is Status.SMALL_DECREASE
        self.n_trainings_ = sum(int(outcome.extra.get("trainings", 0)) for outcome in outcomes)
        super()._set_attributes(fit_outcome)
        self._label_groups()

    def _label_groups(self) -> None:
        parts, prepared, n_groups = self.statistics_, self._prepared, self.weights_.sizes["group"]
        groups = _by_problem([part.columns for part in parts], prepared)
        rows_of = {int(k): slice(None) if part.rows is None else part.rows for part in parts for k in part.columns}
        shared = len(parts) == len(prepared[0].groups) == 1
        labels, names = [], []
        for k in [0] if shared else sorted(groups):
            labels.append(np.full(len(self.train_samples_), -1))
            labels[-1][rows_of[k]] = groups[k].labels
            classes = groups[k].classes if self._one_rule() else self.classes_[groups[k].classes]
            names.append([*classes.tolist(), *[-1] * (n_groups - groups[k].n_groups)])

        def labeled(values: list[Any], dim: str, coord: Array, name: str) -> xr.DataArray:
            table = xr.DataArray(np.array(values), dims=("task", dim), coords={dim: coord}, name=name)
            return table[0] if shared else table.T.assign_coords(task=self.tasks_)

        self.groups_ = labeled(labels, "sample", self.train_samples_, "group")
        self.group_class_ = labeled(names, "group", np.arange(n_groups), "class")

    # --- predicting ----------------------------------------------------------------------------------------------

    def _shares(self, function: ScoreFunction, new: KernelSet, prepared: _Grouped) -> Solver[Float]:
        """β_m^{c(x)} Σ_i β_m^{c(i)} u_i K_m(x, x_i) of new rows."""
        groups = yield from self._groups_of(new, prepared)
        n_groups, n_columns = function.weights.shape[1:]
        # u of each class split by groups, (samples, classes · groups); columns without support vectors are zero.
        members = np.stack([one_hot(made.labels, n_groups) for made in prepared.groups], axis=1)
        block = (function.dual[:, :, None] * members).reshape(len(function.dual), -1)
        used = np.flatnonzero(block.any(axis=0))
        products = yield EachProduct(block[:, used])
        parts = np.zeros((*products.shape[:2], block.shape[1]))
        parts[:, :, used] = products
        parts = parts.reshape(*products.shape[:2], n_columns, n_groups)
        by_sample = function.weights[:, groups, np.arange(n_columns)]  # β_m^{c(x)}: (kernels, rows, classes)
        return np.asarray(np.einsum("nrc,nrcg,ngc->nrc", by_sample, parts, function.weights, optimize=True))

    def _solve_for_new_rows(
        self, K: Kernels | None, ask: Ask, *, groups: Any = None, **new: Any
    ) -> tuple[list[Float], KernelSet, Index]:
        if groups is None:
            return super()._solve_for_new_rows(K, ask, **new)
        given = {**(self._given or {}), **groups}

        def ask_with_groups(function: ScoreFunction, rows: KernelSet, prepared: _Grouped) -> Solver[Float]:
            return ask(function, rows, prepared._replace(given=given))

        return super()._solve_for_new_rows(K, ask_with_groups, **new)

    def groups_of(self, K: KernelSet) -> Index:
        """The group of each row sample, by the rule for new samples; by task if each task has its own groups."""
        self._check_fitted()
        chosen, used = match_kernels(self, K)
        labels = solve_through(self, chosen, used, [self._groups_of(chosen, part) for part in self._prepared])
        groups = [np.broadcast_to(g, (len(g), len(p.columns))) for g, p in zip(labels, self.statistics_, strict=True)]
        by_problem = side_by_side(groups, [part.columns for part in self.statistics_]).astype(np.intp)
        return by_problem if self.groups_.ndim > 1 else by_problem[:, 0]

    def _groups_of(self, new: KernelSet, prepared: _Grouped) -> Solver[Index]:
        """The groups of the row samples, (rows, problems), or (rows, 1) if problems share them."""
        several, kernels, given = prepared
        if by_kernel := [made for made in several if isinstance(made, KernelGroups)]:
            mean = _mean_weights(kernels, len(new))
            products = yield tuple(CombinedProduct(made.means, mean, exact=True) for made in by_kernel)
            labels = [made.labels_of(product) for made, product in zip(by_kernel, products, strict=True)]
        elif isinstance(several[0], GivenGroups):
            labels = [several[0].labels_of(given or {}, new.samples)]
        else:
            names = [new.names[j] for j in kernels]
            features = training_features(new, axis=0)
            table = _feature_table(f"grouping={self.grouping!r}", features, self.feature, names)
            labels = [made.labels_of(table) for made in several if isinstance(made, FeatureGroups)]
        return np.stack(labels, axis=1)

    # --- saving --------------------------------------------------------------------------------------------------

    def _state(self) -> dict[str, Any]:
        arrays = [
            {f"{k}.{name}": v.tolist() for k, made in enumerate(part.groups) for name, v in made.arrays().items()}
            for part in self._prepared
        ]
        state, kernels = {**super()._state(), "groups": arrays}, self._prepared[0].kernels
        # All, unless some are constant over the training samples; files of earlier versions have none.
        return state if len(kernels) == len(self.kernel_names_) else {**state, "grouped_kernels": kernels.tolist()}

    def _set_state(self, state: dict[str, Any]) -> None:
        groups = state.pop("groups")
        kernels = np.arange(len(self.kernel_names_))[state.pop("grouped_kernels", slice(None))]
        super()._set_state(state)
        if isinstance(groups, dict):  # written when all problems had common groups
            groups = [{f"0.{key}": value for key, value in groups.items()}]
        self._prepared = []
        for part in groups:
            arrays: dict[int, dict[str, Array]] = {}
            for name, values in part.items():
                number, key = name.split(".")
                arrays.setdefault(int(number), {})[key] = np.array(values)
            several = tuple(groups_from_arrays(arrays[k]) for k in sorted(arrays))
            self._prepared.append(_Grouped(several, kernels, self._given))
        self._label_groups()


@dataclass(eq=False, repr=False)
class LocalizedMKL(LocalWeights):
    """Localized multiple kernel learning: the weights of the kernels are a function of the sample.

    A support vector machine is learnt on Σ_j η_j(x) k_j(x, x') η_j(x'), together with the gating function

        η_j(x) = exp(v_jᵀg(x) + c_j) / Σ_l exp(v_lᵀg(x) + c_l)

    of the gating features g(x), by descent in v and c. `GSMKL` has weights for groups of samples instead.

    Parameters
    ----------
    C, class_weight, decision, steps
        As in `MKSVM`.
    gating
        The gating features: "kernel" (the row of the sample in the mean of the kernels, a number for each training
        sample), or the name of a feature table that the kernels were built from.
    tol, max_iter
        As in `GSMKL`.

    Attributes
    ----------
    weights_ : DataArray
        The mean of η over the training samples, over kernel; over kernel and class or task for several problems.
    gating_ : Dataset
        `weight`, η of each training sample, over kernel, sample and class (the second of two classes) or task;
        `gating_slope`, v, over kernel, gating feature and class; `gating_constant`, c, over kernel and class, −∞ for
        kernels that are constant over the training samples.
    dual_coef_, intercept_, objective_, gap_, history_, status_, ...
        As in `GSMKL`: nothing is proven, since the problem is not convex.

    Notes
    -----
    Gönen and Alpaydın, ICML 2008; Pattern Recognition 46 (2013). With equal weights, at which the descent starts, the
    kernel is Σ_j K_j/n², so that a C of the plain sum corresponds to n²C here. Nothing but C regularizes the gating:
    with many gating features, as "kernel" has, choose C on validation rows, and compare with `MKSVM`.
    """

    traits = LocalWeights.traits.but(
        takes_unknown_labels=False, fitted={"gating_": labeled_table("weight", "gating_slope", "gating_constant")}
    )

    C: float | Sequence[float] = 1.0
    gating: str = "kernel"

    def _gating_features(self, kernels: KernelSet, features: Callable[[KernelSet], Any]) -> Float | None:
        """The gating features of the row samples, (rows, q); None for rows of the mean kernel."""
        if self.gating == "kernel":
            return None
        return _feature_table(f"gating={self.gating!r}", features(kernels), self.gating, kernels.names)

    def _jobs(self, data: TrainingSet, prepared: Any) -> list[Job]:
        gating, everyone = self._gating_features(data.kernels, features_of), data.training.n_train
        places = None if data.fit.kernels is None else (data.fit.kernels, data.training.n_kernels)

        def solver_of(k: int) -> partial[Solver[Outcome]]:
            C, name = self._prices(data, k), data.problems.title(k)
            problem = GroupProblem(data.problems.h[k], np.arange(everyone), everyone, C=C, name=name)
            rule = partial(localized_mkl, problem, data.n_kernels, gating, data.facts)
            return partial(rule, places=places, tol=self.tol, max_iter=self.max_iter)

        return data.jobs(solver_of)

    def _set_attributes(self, outcome: FitOutcome) -> None:
        super()._set_attributes(outcome)
        dim, m, weights = str(self.dual_coef_.dims[1]), len(self.train_samples_), outcome.score_function.weights
        gating_features: Sequence[str] | Array = self.train_samples_
        if self.gating != "kernel":
            table = training_features(outcome.data.kernels).tables[self.gating]
            gating_features = table.columns or [str(k) for k in range(table.shape[1])]
        coords = {
            "kernel": list(self.kernel_names_),
            "sample": self.train_samples_,
            "gating_feature": list(gating_features),
            dim: self.dual_coef_[dim].values,
        }
        tables = {
            "weight": (("kernel", "sample", dim), weights[:, :m]),
            "gating_slope": (("kernel", "gating_feature", dim), weights[:, m:-1]),
            "gating_constant": (("kernel", dim), weights[:, -1]),
        }
        self.gating_ = xr.Dataset(tables, coords)

    # --- predicting ----------------------------------------------------------------------------------------------

    def _set_state(self, state: dict[str, Any]) -> None:
        super()._set_state(state)
        table = None if isinstance(self.features_, str) else self.features_.tables.get(self.gating)
        width = self.n_features_in_ if self.gating == "kernel" else None if table is None else table.shape[1]
        if width not in (None, self.gating_.sizes["gating_feature"]):
            refuse(f"its gating has {self.gating_.sizes['gating_feature']} features, and {self.gating!r} has {width}")

    def _score_function(self, used: Index) -> ScoreFunction:
        local, slopes, constants = (self.gating_[name].values for name in ("weight", "gating_slope", "gating_constant"))
        weights = np.concatenate([local, slopes, constants[:, None]], axis=1)
        return replace(super()._score_function(used), weights=weights)

    def _shares(self, function: ScoreFunction, new: KernelSet, prepared: Any) -> Solver[Float]:
        (m, k), n = function.dual.shape, len(function.weights)
        local, slopes, constants = np.split(function.weights, [m, function.weights.shape[1] - 1], axis=1)
        gating = self._gating_features(new, partial(training_features, axis=0))
        if gating is None:
            block = slopes.transpose(1, 0, 2).reshape(m, n * k)
            mean = _mean_weights(np.flatnonzero(np.isfinite(constants[:, 0, 0])), n)
            logits = (yield CombinedProduct(block, mean, exact=True)).reshape(-1, n, k)
        else:
            logits = np.einsum("rq,nqk->rnk", gating, slopes)
        weights = softmax(logits + constants[:, 0], axis=1)
        # A column for each kernel and class: Σ_i k_j(x, x_i) η_j(x_i) u_i.
        block = (local * function.dual).transpose(1, 0, 2).reshape(m, n * k)
        products = yield CombinedProduct(block, np.repeat(np.eye(n), k, axis=1), exact=True)
        return np.asarray((weights * products.reshape(-1, n, k)).transpose(1, 0, 2))


def _feature_table(
    needed_by: str, features: TrainingFeatures | str, feature: str | None, kernels: Sequence[str]
) -> Float:
    """The table `feature`, or those of these kernels side by side, (samples, columns); `needed_by` for messages."""
    if isinstance(features, str):
        refuse(f"{needed_by} needs features, and there are none: {features}; take 'kernel'")
    if feature is not None and feature not in features.tables:
        refuse(f"there is no feature table {feature!r}; the tables are {', '.join(map(repr, features.tables))}")
    if feature is None:
        return features.select(kernels).side_by_side()
    table = features.tables[feature]
    return table.read(slice(0, table.shape[0])).astype(np.float64)


def _group_by_features(
    group: Callable[[Float], FeatureGroups], table: Float, anew: bool, keep: Callable[[Mapping[str, Array]], None]
) -> FeatureGroups:
    """Group by features, assign the samples as if they were new if wanted, and keep the result: a task."""
    groups = group(table)
    groups = groups.as_new(table) if anew else groups
    keep(groups.arrays())
    return groups


def _by_problem(members: Sequence[Index], prepared: Sequence[_Grouped]) -> dict[int, SampleGroups]:
    """The groups of each problem, by its number."""
    by_problem: dict[int, SampleGroups] = {}
    for numbers, (groups, _, _) in zip(members, prepared, strict=True):
        by_problem |= zip(numbers.tolist(), groups if len(groups) > 1 else groups * len(numbers), strict=True)
    return by_problem


def _by_position(counts: Counts, classes: Array) -> Counts:
    """The number of groups of each class, by its position."""
    if not isinstance(counts, Mapping):
        return counts
    by_text = {str(label): count for label, count in counts.items()}
    missing = sorted(set(map(str, classes.tolist())) - set(by_text))
    if missing:
        refuse(f"n_groups has no number for class {missing[0]!r}; give one for each class, or a single number")
    return {k: by_text[str(label)] for k, label in enumerate(classes.tolist())}


def _mean_weights(kernels: Index, n_kernels: int) -> Float:
    """The weights of the mean of some kernels."""
    weights = np.zeros(n_kernels)
    weights[kernels] = 1.0 / len(kernels)
    return weights


_HELD = 32  # Assumed number of fits whose mean kernels are in memory together, one for each of their training sets.
