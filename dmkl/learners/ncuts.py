"""Kernel weights by normalized cuts or by the spectrum of similarities, and a classifier on the combined kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import xarray as xr

from dmkl import progress
from dmkl.arrays import Float, plain_repr
from dmkl.errors import ConvergenceWarning, refuse, warn
from dmkl.kernelset import KernelSet
from dmkl.learners.checks import check_count, check_numbers, one_of
from dmkl.learners.margin import WeightedMachines
from dmkl.learners.plan import FitOutcome, Loss, Multiclass, Part, TrainingSet
from dmkl.learners.traits import COUNT, WRITTEN_BY_CLASS, json_value
from dmkl.numerics.fisher import Targets, class_of, relative_gap
from dmkl.numerics.grouping import one_hot
from dmkl.passes.execute import machine
from dmkl.solvers.cuts import best_cut, ratios, sample_examples
from dmkl.solvers.in_memory import answer
from dmkl.solvers.interface import (
    SVM,
    CombinedEntries,
    Outcome,
    Projection,
    Solver,
    Status,
    Step,
    Task,
    run_with,
    worst,
)
from dmkl.solvers.jobs import Job, SideBySide, together
from dmkl.solvers.spectral import spectral_weights
from dmkl.solvers.workspace import Prepared

_UNPROVEN = (
    "No small change improves the classifiers, but the combined kernel is not known to be positive semidefinite: "
    "better ones may exist."
)

Sharing = Literal["mean", "own", "joint", "partition"]


@dataclass(eq=False, repr=False)
class CutClassifier(WeightedMachines, abstract=True):
    """Weights for which the classes are good cuts, then a classifier on the sum for each binary problem."""

    _: KW_ONLY
    loss: Loss = "hinge"
    C: float | Sequence[float] = 10.0
    lam: float | Sequence[float] = 1.0
    multiclass: Multiclass = "ovr"
    steps: str | Sequence[str] = ()
    tol: float = 1e-4

    traits = WeightedMachines.traits.but(
        takes_unknown_labels=False,
        weights_are_copies=False,
        bounded="the objective of each classifier",
        fitted={"cuts_": WRITTEN_BY_CLASS, "n_cut_passes_": json_value(COUNT)},
    )

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.loss == "square" and self.multiclass == "ovo":
            refuse("the square loss is for one class against the rest; take multiclass='ovr', or loss='hinge'")

    def _method(self) -> SideBySide:
        return SideBySide(files=True)

    def _classifiers(
        self,
        data: TrainingSet,
        weights: Float,
        steps: Sequence[Sequence[Step]],
        statuses: Sequence[Status] = (Status.CERTIFIED,),
    ) -> list[Job]:
        """A classifier for each problem, on weights (problems, n), or (1, n) for all, with their steps and statuses."""
        problems = data.problems
        ridges = self._of_problems("lam", len(problems))
        columns = [column for h in problems.targets.problems for column in h.T]

        def solver_of(k: int) -> partial[Solver[Outcome]]:
            own, history = weights[k % len(weights)], steps[k % len(steps)]
            if self.loss == "hinge":
                noise = float(np.sum(own * data.facts.noise))
                wanted = SVM(own, problems.h[k], self._prices(data, k), self.tol, noise=noise)
            else:
                wanted = SVM(own, columns[k], None, self.tol, lam=ridges[k])
            return partial(_classifier, wanted, own, history, self.tol, statuses[k % len(statuses)])

        return data.jobs(solver_of)

    def _set_cuts(self, outcome: FitOutcome, table: Mapping[str, Sequence[Any]]) -> None:
        """Set `cuts_` from a value for each cut, and the passes that the weights took."""
        problems, (cuts,) = outcome.data.problems, outcome.prepared
        self.n_cut_passes_ = outcome.n_prepared
        dim = "cut" if len(cuts) == 1 else str(problems.dim)
        coords = {} if dim == "cut" else {dim: self.dual_coef_[dim].values}
        cuts_table = xr.Dataset({name: ((dim,), values) for name, values in table.items()}, coords)
        self.cuts_ = cuts_table.isel({dim: 0}) if dim == "cut" else cuts_table

    def _state(self) -> dict[str, Any]:
        return {**super()._state(), "cuts": self.cuts_.to_dict()}

    def _set_state(self, state: dict[str, Any]) -> None:
        self.cuts_ = xr.Dataset.from_dict(state.pop("cuts"))
        super()._set_state(state)


@dataclass(eq=False, repr=False)
class NCuts(CutClassifier):
    """Kernel weights by normalized cuts, then a classifier on the sum.

    The training samples are divided into N examples. In each, a binary problem cuts the samples into two sides; with
    u_l the mean similarity across the cut under kernel l, and v_l the sum of the mean similarities within the sides,

        min over α ≥ 0, Σα = 1 of  Σ_{g<h} αᵀ(uᵍvʰᵀ + uʰvᵍᵀ − vᵍvʰᵀ)α

    over pairs of examples. It is solved by a semidefinite relaxation with a proven bound, the paper's rounding and a
    descent from there. Its size is the number of kernels: one pass over the kernels is all that the samples are needed
    for. The classifier is then learnt on K(α) = Σ_l α_l K_l.

    Parameters
    ----------
    n_examples
        N, 5 in the paper. Every class needs at least N samples, better 5N: ratios of few samples are noisy, and with
        two samples of a class k(x, x) is half of them. With one example all weight is on the kernel with the smallest
        ratio.
    loss
        Loss of the classifier: "hinge" (support vector machines), or "square" (regularized Fisher discriminants with a
        bias, as `MKFDA` on the centered combined kernel).
    C, decision
        As in `MKSVM`.
    lam
        Ridge λ > 0 of the square loss, in units of the combined kernel's eigenvalues: m times that of `MKFDA`,
        whose kernels have unit trace. For several problems also one for each.
    multiclass
        More than two classes: "ovr", one against the rest, or for machines "ovo", one against one by votes.
    class_weight
        As in `MKSVM`, for the hinge loss only. The weights of kernels do not depend on it.
    sharing
        With several classes each binary problem is a cut. "mean": all problems use the mean of the weights of all cuts;
        "own": each problem has its own weights, as in the paper's one-vs-all scheme; "joint": one program over the
        ratios of all problems; "partition": one program over the ratios of each class, whose v_l is the mean similarity
        within that class alone (Eqs. 2 to 4). As all programs it makes Σ uᵀα/vᵀα small, as Eqs. 7 to 13. Eq. 5, by
        which Σ vᵀα/uᵀα over the classes is to be large, may have another optimum and is not optimized. `cuts_` has both
        sums. Each task of a multilabel problem has its own weights.
    steps
        As in `MKFDA`; none by default, as in the paper, whose kernels have k(x, x) = 1. Ratios compare similarities,
        which centering would make negative. Their weights depend on the scale of the kernels: take ("cosine",) if
        k(x, x) differs between kernels and all are positive semidefinite. In kernels that are not, it enlarges the
        entries of samples with a small k(x, x): random matrices with the mean of the kernels then look similar within
        classes.
    tol
        The gap to prove, of weights (see `cuts_`) and of classifiers.
    max_iter
        Most steps of the relaxation's solver.
    random_state
        Fixes the examples.

    Attributes
    ----------
    weights_ : DataArray
        α, over kernel; over kernel and class, pair or task where there are several.
    cuts_ : Dataset
        For each program: `value` αᵀQα of the weights, `ratio` Σ uᵀα/vᵀα and `reciprocal` Σ vᵀα/uᵀα under them, `bound`
        (no weights have a lower value), `relaxed` (value of the relaxation), `rounded` (value after the paper's
        rounding), `descended` (value after a descent from there), `gap` = (value − bound)/(max Q − min Q),
        `iterations`, and `proof`: "theorem 1" or "theorem 2" if these imply that the relaxation is exact, "bound" if
        only its bound proves it, "single ratio", or "none": better weights may exist, within the gap.
    gap_ : float or DataArray
        The proven relative gap of each classifier on its combined kernel; NaN where that may be indefinite.
    objective_, dual_coef_, intercept_, classes_, n_passes_, status_
        As in `MKSVM`; the objective of each classifier is the dual of the machine, or of least squares.
    n_cut_passes_ : int
        Passes for the weights, included in `n_passes_`: one, unless the examples do not fit in memory together.
    history_ : Dataset
        Value, bound and weights of the relaxation, every 25 of its steps.

    Notes
    -----
    Source: Mukherjee, Singh, Peng, Hinrichs, CVPR 2010, Eqs. 4 to 15, section 4.1. Dual bound: `dmkl.solvers.cuts`.

    If examples are alike, αᵀQα is nearly proportional to (vᵀα)((u − v/2)ᵀα), whose minimum has one or two kernels. This
    excludes noise, and also good kernels: the mean over several problems keeps more of them.

    The weights do not need positive semidefinite kernels. On an indefinite combined kernel, or one that does not fit
    the memory of one task to be examined, a support vector machine ends at a local optimum without proof, and `gap_` is
    NaN. The square loss refuses an indefinite combined kernel unless λ is large enough.
    """

    n_examples: int = 5
    _: KW_ONLY
    sharing: Sharing = "mean"
    max_iter: int = 5000
    random_state: int = 0

    traits = CutClassifier.traits.but(
        prepared_by=("n_examples", "sharing", "tol", "max_iter", "random_state"),
        rules={"sharing": one_of("mean", "own", "joint", "partition"), "n_examples": check_count},
    )

    def _check_data(self, K: KernelSet, targets: Targets) -> None:
        super()._check_data(K, targets)
        for h in targets.problems:
            sample_examples(class_of(h), self.n_examples, self.random_state, targets.classes)

    def _prepare(self, data: TrainingSet, part: Part, files: Prepared) -> Solver[list[Outcome]]:
        """A cut for each problem, or one for all."""
        problems, targets, n = data.problems, data.problems.targets, data.n_kernels
        multilabel, c = targets.kind == "multilabel", len(targets.classes)
        by_parts = self.sharing == "partition" and not multilabel
        # All examples are one block, and take one pass, if a matrix of that width for each kernel fits in memory.
        width = max(1, int((machine().task_bytes / (32 * n)) ** 0.5) // c) * c
        labels, blocks = [class_of(h) for h in targets.problems], []
        for of_task in labels:
            # BᵀKB of these columns holds the sums of K over pairs of classes in an example, from which all cuts are
            # computed: the size of the program does not depend on the samples.
            examples = sample_examples(of_task, self.n_examples, self.random_state, targets.classes)
            columns = one_hot(examples * c + of_task, self.n_examples * c)
            blocks.append(np.split(columns, range(width, columns.shape[1], width), axis=1))
        products = yield tuple(Projection(block) for blocks_of_task in blocks for block in blocks_of_task)
        following = iter(products)
        several: list[tuple[Float, Float]] = []
        for number, (of_task, blocks_of_task) in enumerate(zip(labels, blocks, strict=True)):
            similar = []  # between classes, (kernels, examples, classes, classes)
            for block in blocks_of_task:
                e = block.shape[1] // c
                similar.append(np.einsum("leaeb->leab", next(following).reshape(-1, e, c, e, c)))
            sums = np.concatenate(similar, axis=1)[data.positions]
            sizes = np.hstack([block.sum(axis=0) for block in blocks_of_task]).reshape(-1, c)
            if by_parts:  # each class against all others
                signs = 2.0 * np.eye(c) - 1.0
            else:
                chosen = [number] if multilabel else range(len(problems))
                signs = np.zeros((len(chosen), c))  # 0 for classes of which a problem has no rows
                for sides, k in zip(signs, chosen, strict=True):
                    rows = problems.rows[k]
                    sides[of_task if rows is None else of_task[rows]] = problems.h[k]
            several += zip(*ratios(sums, sizes, signs, one_sided=by_parts), strict=True)
        if self.sharing in ("joint", "partition") and not multilabel:
            several = [(np.concatenate([u for u, _ in several]), np.concatenate([v for _, v in several]))]
        progress.current().note(f"weights of {n:,} kernels for {len(several):,} cuts")
        cuts: list[Outcome]
        cuts = yield tuple(Task("cut", best_cut, (u, v, self.tol, self.max_iter)) for u, v in several)
        return cuts

    def _jobs(self, data: TrainingSet, prepared: list[list[Outcome]]) -> list[Job]:
        (cuts,) = prepared
        weights = np.array([cut.weights for cut in cuts])
        if self.sharing == "mean" and data.problems.targets.kind != "multilabel":
            weights = weights.mean(axis=0, keepdims=True)
        return self._classifiers(data, weights, [cut.steps for cut in cuts])

    def _set_attributes(self, outcome: FitOutcome) -> None:
        problems, (cuts,) = outcome.data.problems, outcome.prepared
        if problems.targets.kind == "multiclass" and self.sharing != "own":
            self.weights_ = self.weights_.isel({problems.dim: 0}, drop=True)
        figures = [{"value": cut.objective, "bound": cut.bound, "gap": cut.gap, **cut.extra} for cut in cuts]
        self._set_cuts(outcome, {name: [of_cut[name] for of_cut in figures] for name in figures[0]})
        converged = all(cut.status is not Status.ITERATIONS for cut in cuts)
        gap = float(self.cuts_.gap.max())
        advice = "Weights: proven optimal to the tolerance."
        if not converged:
            advice = f"Weights: the relaxation ran out of steps, at a gap of {gap:.1e}: raise max_iter, or tol."
            warn(f"{type(self).__name__} stopped before its relaxation was solved. {advice}", ConvergenceWarning)
        elif gap > self.tol:
            advice = (
                f"Weights: better ones may exist, by up to {gap:.1e} of the range of Q; the relaxation proves no more."
            )
        if outcome.outcomes[worst(outcome.outcomes)].status is Status.CONVERGED:
            self.status_ = _UNPROVEN
        self.status_ = f"{self.status_} {advice}"


@dataclass(eq=False, repr=False)
class SpectralLearning(CutClassifier):
    """Kernel weights by regularized spectral learning, then a classifier on the sum.

    With S = Σ_j β_j K_j, its degrees D = diag(S1), the eigenvalues λ_1 ≥ λ_2 ≥ … of D⁻¹S, and c classes with indicators
    1_k,

        min over β ≥ 0, Σβ = 1 of  gap − a (λ_c − λ_{c+1})²,   gap = Σ_{k≤c} λ_k − Σ_k 1_kᵀS1_k / 1_kᵀD1_k ≥ 0:

    the multiway normalized cut of the classes minus its minimum relaxed to eigenvectors, and the squared eigengap. The
    classifier is then learnt on S, as in `NCuts`.

    Parameters
    ----------
    eigengap_weight
        a ≥ 0, to be chosen by a search: the eigengap of many classes is small. For a = 0 the smallest gap often belongs
        to kernels in which each sample is similar to few others, such as kernels of noise.
    steps
        None by default; similarities must be zero or larger, as they are after ("cosine",), not after ("center",).
    tol
        As `NCuts` for classifiers. At the end no derivative of the objective J is below −tol·max(1, abs(J)), or five
        steps lower J by at most that.
    max_iter
        Most steps for the weights.
    loss, C, lam, multiclass, class_weight, decision
        As in `NCuts`.

    Attributes
    ----------
    weights_ : DataArray
        β, over kernel; over kernel and task for a multilabel problem, whose tasks have two classes each.
    cuts_ : Dataset
        Of the weights: `objective`, `mncut` (the multiway normalized cut), `cut_gap` and `eigengap`, over task if there
        are tasks; `history_` has them for each step.
    gap_ : float or DataArray
        NaN: nothing is proven, since the objective is not convex.
    objective_, dual_coef_, intercept_, classes_, n_passes_, n_cut_passes_, status_
        As in `NCuts`.

    Notes
    -----
    After Meilă, Shortreed, Xu, Regularized spectral learning, AISTATS 2005. Its abstract names the two terms, the gap
    as the quality of the clustering and the eigengap as its regularizer. That they are combined in this way, with the
    square, is an assumption which has not been compared with the paper's text, and so is the solver
    (`dmkl.solvers.spectral`). The paper learns similarities as functions of features, not sums of kernels.

    One pass reads all kernels if 16 n m² bytes fit the memory of a task; otherwise each step takes two passes.
    """

    eigengap_weight: float = 10.0

    traits = CutClassifier.traits.but(prepared_by=("eigengap_weight", "tol", "max_iter"))

    def _check_parameters(self) -> None:
        super()._check_parameters()
        a = check_numbers("eigengap_weight", self.eigengap_weight)
        if len(a) != 1 or not 0 <= a[0] < np.inf:
            refuse(f"eigengap_weight must be a finite number, zero or larger, got {plain_repr(self.eigengap_weight)}")

    def _prepare(self, data: TrainingSet, part: Part, files: Prepared) -> Solver[list[Outcome]]:
        """The weights for the classes, or for those of each task."""
        given = data.n_kernels, self.eigengap_weight, data.facts
        rules = [
            spectral_weights(class_of(h), *given, tol=self.tol, max_iter=self.max_iter)
            for h in data.problems.targets.problems
        ]
        solvers = [Job(data.training, None, data.fit.kernels).adapted(rule) for rule in rules]
        n, m = data.training.n_kernels, data.training.n_train
        if 16 * n * m**2 > machine().task_bytes:
            return (yield from together(solvers))
        kernels = np.array((yield tuple(CombinedEntries(single, np.arange(m)) for single in np.eye(n))))
        return [run_with(solver, partial(answer, kernels)) for solver in solvers]

    def _jobs(self, data: TrainingSet, prepared: list[list[Outcome]]) -> list[Job]:
        (cuts,) = prepared
        weights = np.array([cut.weights[data.positions] for cut in cuts])
        return self._classifiers(data, weights, [cut.steps for cut in cuts], [cut.status for cut in cuts])

    def _set_attributes(self, outcome: FitOutcome) -> None:
        (cuts,) = outcome.prepared
        if self.kind_ == "multiclass":
            self.weights_ = self.weights_.isel({outcome.data.problems.dim: 0}, drop=True)
        self._set_cuts(outcome, {name: [float(cut.extra[name]) for cut in cuts] for name in cuts[0].extra})
        if any(cut.status is Status.FALLING for cut in cuts):
            warn(f"SpectralLearning has not converged. {Status.FALLING.advice}", ConvergenceWarning)


def _classifier(wanted: SVM, weights: Float, steps: Sequence[Step], tol: float, of_weights: Status) -> Solver[Outcome]:
    """Learn a classifier on fixed weights; the steps are those of the weights, `of_weights` is their status."""
    answer = yield wanted
    gap = relative_gap(answer.primal, answer.dual, answer.primal)
    status = Status.CERTIFIED if gap <= tol else Status.STALLED
    if wanted.lam is None and not answer.concave:
        # The gap is zero at every local optimum, of which there may be several.
        gap, status = np.nan, Status.CONVERGED if gap <= tol else status
    if of_weights is not Status.CERTIFIED:
        # A proof for the classifier alone is none for both.
        gap, status = np.nan, max(of_weights, status, key=lambda ended: ended.code)
    return Outcome(status, weights, answer.u[:, None], answer.dual, answer.primal, gap, np.array([answer.bias]), steps)
