"""Group-sensitive multiple kernel learning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
import xarray as xr

from dmkl import settings
from dmkl.errors import InputError
from dmkl.estimators.base import KernelClassifier, TrainingSet, check_kernel_set
from dmkl.features.cross import TrainingFeatures, row_features
from dmkl.kernelset import KernelSet
from dmkl.numerics.fisher import Targets
from dmkl.numerics.grouping import SampleGroups as Groups
from dmkl.numerics.grouping import group_by_kernel, group_by_kmeans, group_by_plsa, groups_from_arrays
from dmkl.passes.run import run_pass
from dmkl.passes.sweep import Columns
from dmkl.passes.view import Lens
from dmkl.solvers.driver import drive
from dmkl.solvers.groups import GroupOutcome as GroupSolution
from dmkl.solvers.groups import GroupProblem, best_of, gs_mkl
from dmkl.solvers.groups import WeightForm as Weighting
from dmkl.solvers.requests import Solver

__all__ = ["GSMKL", "Grouping", "Loss"]

Array = npt.NDArray[Any]
Float = npt.NDArray[np.float64]
Index = npt.NDArray[np.intp]
Grouping = Literal["kernel", "kmeans", "plsa"]
Loss = Literal["hinge", "square"]


class GSMKL(KernelClassifier):
    """Group-sensitive multiple kernel learning: each group of samples has kernel weights of its own.

    With c(i) the group of sample i and β_m^g the weight of kernel m for group g, one classifier for each class is
    learnt on

        K(x_i, x_j) = Σ_m β_m^{c(i)} β_m^{c(j)} K_m(x_i, x_j),

    together with the weights, by descent in the parameters of a softmax over the kernels of each group.

    Parameters
    ----------
    C
        C > 0, the price of a unit of hinge loss.
    n_groups
        Groups in each class; a number, or a mapping from classes to numbers. 1 is MKL with weights for each class of
        samples (see Notes, and `across`).
    grouping
        How the samples of a class are divided: "kernel" (kernel k-means on the mean kernel), "kmeans" or "plsa" (on
        the features that the kernels were built from).
    loss
        "hinge" (support vector machines), or "square" (regularised least squares: a group-sensitive Fisher
        discriminant), whose ridge is `lam`.
    lam
        λ > 0 of the square loss.
    weighting
        "root": β = √γ with γ the softmax, so that Σ_m (β_m^g)² = 1; "softmax": the paper's β = γ.
    across
        Make groups of all samples together, `n_groups` in all, instead of some in each class. Then c(x) tells no more
        of the class in training than it does later, and n_groups=1 is canonical MKL.
    regroup
        Give the training samples the groups that new samples like them would get. The paper's groups lie inside
        classes; a classifier then reads the class off the group in training, where a new sample's group is only
        guessed (False shows it). For n_groups=1 this mends it, for more of them mostly: how the other samples of the
        class were divided still tells a little.
    feature
        The feature table that "kmeans" and "plsa" look at; all of them side by side where missing.
    restarts
        Descents from different weights, the first equal ones; the one with the lowest objective is kept.
    random_state
        Fixes groups and restarts.
    center, normalize, tol, max_iter
        As in `MKSVM`; `tol` is the relative decrease over five steps at which a descent ends.

    Attributes
    ----------
    weights_ : DataArray
        β, over kernel, group and class (the second of two classes; task for a multilabel problem).
    groups_ : DataArray
        The group of each training sample.
    group_class_ : DataArray
        The class whose samples made each group; 0 of groups across classes.
    dual_coef_, intercept_
        As in `MKSVM`.
    objective_ : float or DataArray
        The training objective W; it fell in every step of `history_`.
    gap_ : float or DataArray
        The relative decrease of the objective over the last steps: the problem is not convex, and nothing proves how
        far the best weights are.
    converged_, status_ : bool, str
        Whether every descent ended before `max_iter`, and what to do.

    Notes
    -----
    Source: Yang, Li, Tian, Duan, Gao, ICCV 2009, Algorithm 1. A new sample gets the group whose center is nearest
    (whose topic is most likely), among the groups of all classes.

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
        n_groups: int | Mapping[Any, int] = 2,
        grouping: Grouping = "kernel",
        loss: Loss = "hinge",
        *,
        lam: float = 1e-2,
        weighting: Weighting = "root",
        across: bool = False,
        regroup: bool = True,
        feature: str | None = None,
        restarts: int = 1,
        random_state: int = 0,
        center: bool = True,
        normalize: str | None = "multiplicative",
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
        self.random_state = random_state
        self.center = center
        self.normalize = normalize
        self.tol = tol
        self.max_iter = max_iter

    # --- fitting -------------------------------------------------------------------------------------------------

    def fit(self, K: KernelSet, y: npt.ArrayLike | None = None) -> Self:
        """Make the groups, and learn weights and classifiers.

        Parameters
        ----------
        K, y
            As in `MKSVM.fit`.

        Raises
        ------
        InputError
            If a parameter, the labels or the kernels break a rule, or features are asked for that are not there.
        """
        self._check_parameters()
        training = self._training(K, y)
        self._grouped, passes = self._make_groups(training)
        found, more = drive(self._jobs(training), lanes=settings.block_width())
        per_problem = [found[k : k + self.restarts] for k in range(0, len(found), self.restarts)]
        self._keep(training.targets, [best_of(solutions) for solutions in per_problem])
        self.n_passes_ = training.n_passes + passes + more
        return self

    def _check_parameters(self) -> None:
        choices = {
            "grouping": ("kernel", "kmeans", "plsa"),
            "loss": ("hinge", "square"),
            "weighting": ("root", "softmax"),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                msg = f"{name} must be {' or '.join(map(repr, allowed))}, got {getattr(self, name)!r}"
                raise InputError(msg)
        for name in ("restarts", "max_iter"):
            if not getattr(self, name) >= 1:
                msg = f"{name} must be at least 1, got {getattr(self, name)!r}"
                raise InputError(msg)
        price = "C" if self.loss == "hinge" else "lam"
        for name in ("tol", price):
            if not (np.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                msg = f"{name} must be positive and finite, got {getattr(self, name)!r}"
                raise InputError(msg)

    def _make_groups(self, training: TrainingSet) -> tuple[Groups, int]:
        """The groups of the training samples, and the passes that took."""
        targets, K = training.targets, training.kernels
        if self._one_rule():
            classes: Array | None = None
        elif targets.kind == "binary":
            classes = (targets.problems[0][:, 0] > 0).astype(np.intp)
        else:
            classes = np.argmax(targets.problems[0], axis=1)
        counts: int | dict[int, int]
        if isinstance(self.n_groups, Mapping):
            place = {label: k for k, label in enumerate(self.classes_.tolist())}
            counts = {place[label]: int(count) for label, count in self.n_groups.items() if label in place}
        else:
            counts = int(self.n_groups)
        seed, anew = self.random_state, self.regroup and not self._one_rule()
        if self.grouping == "kernel":
            mean = _MeanKernel(Lens(K.view, K.statistics()))
            diagonal = mean.diagonal()
            made: Groups = group_by_kernel(mean, diagonal, classes, counts, seed=seed)
            made = made.as_new(mean, diagonal) if anew else made
            return made, mean.n_passes
        table = self._table(self.features_)
        group = group_by_kmeans if self.grouping == "kmeans" else group_by_plsa
        made = group(table, classes, counts, seed=seed)
        return made.as_new(table) if anew else made, 0

    def _one_rule(self) -> bool:
        """Whether groups are made across all classes: in a multilabel problem a sample has no one class."""
        return self.across or self.kind_ == "multilabel"

    def _table(self, features: TrainingFeatures | str) -> Float:
        """The features that groups are made of, (samples, columns)."""
        if isinstance(features, str):
            msg = (
                f"grouping={self.grouping!r} looks at features, which are not there: {features}; take grouping='kernel'"
            )
            raise InputError(msg)
        if self.feature is not None and self.feature not in features.tables:
            known = ", ".join(map(repr, features.tables))
            msg = f"there is no feature table {self.feature!r} to group by; the tables are {known}"
            raise InputError(msg)
        names = list(features.tables) if self.feature is None else [self.feature]
        tables = [features.tables[name] for name in names]
        return np.concatenate([t.read(slice(0, t.shape[0])).astype(np.float64) for t in tables], axis=1)

    def _jobs(self, training: TrainingSet) -> list[tuple[Lens, Solver[GroupSolution]]]:
        K, targets = training.kernels, training.targets
        lens = Lens(K.view, K.statistics())
        columns = [column for h in targets.problems for column in h.T]
        square = self.loss == "square"
        jobs: list[tuple[Lens, Solver[GroupSolution]]] = []
        for number, h in enumerate(columns):
            problem = GroupProblem(
                h if square else np.where(h > 0, 1.0, -1.0),
                self._grouped.labels,
                self._grouped.n_groups,
                C=None if square else self.C,
                lam=self.lam if square else None,
                name="" if len(columns) == 1 else f"{number + 1} of {len(columns)}: ",
            )
            for restart in range(self.restarts):
                seed = None if restart == 0 else self.random_state + restart
                job = gs_mkl(problem, len(K), weighting=self.weighting, seed=seed, tol=self.tol, max_iter=self.max_iter)
                jobs.append((lens, job))
        return jobs

    def _keep(self, targets: Targets, solutions: Sequence[GroupSolution]) -> None:
        names, samples = np.array(self.kernel_names_, dtype=str), self.train_samples_
        dim = "task" if self.kind_ == "multilabel" else "class"
        labels: Any = {"multilabel": self.tasks_, "binary": self.classes_[1:]}.get(self.kind_, self.classes_)
        groups = np.arange(self._grouped.n_groups)
        along = {dim: labels}
        self.weights_ = xr.DataArray(
            np.stack([solution.weights for solution in solutions], axis=2),
            dims=("kernel", "group", dim),
            coords={"kernel": names, "group": groups, **along},
            name="weight",
        )
        self.dual_coef_ = xr.DataArray(
            np.stack([solution.u for solution in solutions], axis=1),
            dims=("sample", dim),
            coords={"sample": samples, **along},
            name="dual_coef",
        )
        self.intercept_ = xr.DataArray([s.bias for s in solutions], dims=(dim,), coords=along, name="intercept")
        self._label_groups()
        objectives = np.array([solution.objective for solution in solutions])
        decreases = np.array([_last_decrease(solution.objectives) for solution in solutions])
        single = self.kind_ == "binary"
        self.objective_ = (
            float(objectives[0]) if single else xr.DataArray(objectives, dims=(dim,), coords=along, name="objective")
        )
        self.gap_ = float(decreases[0]) if single else xr.DataArray(decreases, dims=(dim,), coords=along, name="gap")
        self.converged_ = all(solution.converged for solution in solutions)
        self.status_ = (
            "The objective stopped falling: a local minimum, to within the tolerance."
            if self.converged_
            else "The iteration cap was reached while the objective still fell: raise max_iter, or tol."
        )
        self.n_iter_ = max(len(solution.objectives) for solution in solutions) - 1
        self.n_trainings_ = sum(solution.trainings for solution in solutions)
        history = np.full((len(solutions), self.n_iter_ + 1), np.nan)
        for row, solution in zip(history, solutions, strict=True):
            row[: len(solution.objectives)] = solution.objectives
        self.history_ = xr.Dataset(
            {"objective": ((dim, "iteration"), history)}, coords={**along, "iteration": np.arange(history.shape[1])}
        )

    def _label_groups(self) -> None:
        made = self._grouped
        self.groups_ = xr.DataArray(made.labels, dims=("sample",), coords={"sample": self.train_samples_}, name="group")
        classes = made.classes if self._one_rule() else self.classes_[made.classes]
        self.group_class_ = xr.DataArray(
            classes, dims=("group",), coords={"group": np.arange(made.n_groups)}, name="class"
        )

    # --- predicting ----------------------------------------------------------------------------------------------

    def decision_function(self, K: KernelSet | None = None, **new: Any) -> xr.DataArray:
        """Scores f(x) = Σ_m β_m^{c(x)} Σ_i β_m^{c(i)} u_i K_m(x, x_i) + b of the row samples; see `MKSVM`."""
        self._check_fitted()
        if new:
            return super().decision_function(K, **new)
        check_kernel_set(K, "prediction")
        assert K is not None
        used = np.arange(len(self.kernel_names_))
        chosen = self._matching(K, used)
        fitted, extra = self._prediction_chain(chosen, used)
        lens = Lens(chosen.view, fitted)
        groups, passes = self._groups_of(chosen, lens)
        u, weights = self.dual_coef_.values, self.weights_.values
        n_groups, n_columns = self._grouped.n_groups, u.shape[1]
        # u of each class cut into groups: (samples, classes · groups).
        inside = np.eye(n_groups)[self._grouped.labels]
        block = (u[:, :, None] * inside[:, None, :]).reshape(len(u), -1)
        (products,), more = run_pass([lens], [Columns(block, "each", None, np.dtype(np.float64))], "predict")
        self.n_prediction_passes_ = passes + more + extra
        parts = products.reshape(len(used), -1, n_columns, n_groups)
        by_sample = weights[:, groups, :]  # β_m^{c(x)}: (kernels, rows, classes)
        scores = np.einsum("nrc,nrcg,ngc->rc", by_sample, parts, weights, optimize=True) + self.intercept_.values
        coords: dict[str, Any] = {"sample": chosen.samples.astype(str)}
        if self.kind_ == "binary":
            return xr.DataArray(scores[:, 0], dims=("sample",), coords=coords, name="score")
        dim = str(self.dual_coef_.dims[1])
        coords[dim] = self.dual_coef_.coords[dim].values
        return xr.DataArray(scores, dims=("sample", dim), coords=coords, name="score")

    def groups_of(self, K: KernelSet) -> Index:
        """The group of each row sample, by the rule for new samples."""
        self._check_fitted()
        used = np.arange(len(self.kernel_names_))
        chosen = self._matching(K, used)
        return self._groups_of(chosen, Lens(chosen.view, self._prediction_chain(chosen, used)[0]))[0]

    def _groups_of(self, K: KernelSet, lens: Lens) -> tuple[Index, int]:
        if self.grouping == "kernel":
            mean = _MeanKernel(lens)
            return self._grouped.labels_of(mean), mean.n_passes
        return self._grouped.labels_of(self._table(row_features(K))), 0

    def _kernels_used(self) -> list[str]:
        # Groups by kernels look at all of them.
        return list(self.kernel_names_)

    # --- saving --------------------------------------------------------------------------------------------------

    def _more_state(self) -> dict[str, Any]:
        plain = {name: np.asarray(getattr(self, name)).tolist() for name in ("gap_", "objective_")}
        own = {name: getattr(self, name) for name in ("converged_", "status_", "n_iter_", "n_trainings_", "n_passes_")}
        return {**plain, **own, "groups": {key: value.tolist() for key, value in self._grouped.arrays().items()}}

    def _set_more_state(self, state: dict[str, Any]) -> Self:
        groups = state.pop("groups")
        self._grouped = groups_from_arrays({key: np.array(value) for key, value in groups.items()})
        dim = self.dual_coef_.dims[1]
        for name in ("gap_", "objective_"):
            if isinstance(state[name], list):
                labels = self.dual_coef_[dim].values
                state[name] = xr.DataArray(np.array(state[name]), dims=(dim,), coords={dim: labels}, name=name[:-1])
        super()._set_more_state(state)
        self._label_groups()
        return self


def _last_decrease(objectives: Sequence[float]) -> float:
    """How much the last five steps lowered the objective, relative."""
    before = objectives[max(0, len(objectives) - 6)]
    return max(before - objectives[-1], 0.0) / (abs(objectives[-1]) or np.finfo(np.float64).tiny)


class _MeanKernel:
    """Products of the mean kernel with vectors over the column samples, a pass for each."""

    def __init__(self, lens: Lens) -> None:
        self._lens = lens
        self.n_passes = 0

    def __call__(self, block: Float) -> Float:
        n = len(self._lens.view.kernels)
        weights = np.full((n, block.shape[1]), 1.0 / n)
        (found,), passes = run_pass([self._lens], [Columns(block, "sum", weights, np.dtype(np.float64))], "group")
        self.n_passes += passes
        return found

    def diagonal(self) -> Float:
        """K_ii of the mean kernel, of a square view."""
        diagonal = self._lens.diagonal()
        assert diagonal is not None  # a symmetric source has its own
        return np.asarray(diagonal.mean(axis=0))
