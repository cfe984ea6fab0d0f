"""Kernel weights by normalized cuts, and a classifier on the combined kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import xarray as xr

from dmkl import progress
from dmkl.arrays import Float
from dmkl.errors import ConvergenceWarning, InputError, warn
from dmkl.estimators.checks import check_choice, check_count, check_positive, one_for_each
from dmkl.estimators.margin import MarginClassifier
from dmkl.estimators.plan import FitOutcome, Preparation, TrainingSet
from dmkl.estimators.problems import ClassWeight, Loss, Multiclass, Problems, check_hinge
from dmkl.kernelset import KernelSet
from dmkl.numerics.fisher import Targets, relative_gap
from dmkl.numerics.ncuts import class_columns, ratios, sample_examples
from dmkl.passes.execute import machine
from dmkl.solvers.cuts import KernelCut, best_cut
from dmkl.solvers.jobs import Job, SideBySide
from dmkl.solvers.outcome import Outcome, Status, Step, worst
from dmkl.solvers.requests import SVM, GroupClassifier, Projection, Solver, Task

__all__ = ["NCuts", "Sharing"]

_UNPROVEN = (
    "No small change improves the classifiers, but the combined kernel is not known to be positive semidefinite: "
    "better ones may exist."
)

Index = npt.NDArray[np.intp]
Sharing = Literal["mean", "own", "joint"]


class NCuts(MarginClassifier):
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
        N, the paper's is 5. Every class needs that many samples, and better five times as many: the ratios of a few
        samples are noise themselves, which k(x, x) alone makes up half of where a class has two. With one example, a
        cut's weights are those of the kernel with the smallest ratio.
    loss
        Loss of the classifier: "hinge" (support vector machines), or "square" (regularized Fisher discriminants, with a
        bias: those of `MKFDA` on the centered combined kernel).
    C
        SVM penalty C > 0 on margin violations. For several problems also one for each.
    lam
        Ridge λ > 0 of the square loss, in units of the combined kernel's eigenvalues: m times that of `MKFDA`,
        whose kernels have unit trace. For several problems also one for each.
    multiclass
        More than two classes: "ovr", one against the rest, or for machines "ovo", one against one by votes.
    class_weight
        As in `MKSVM`; of the hinge loss alone. The kernels' weights do not depend on it.
    sharing
        With several classes each binary problem is a cut. "mean": weights are learnt for each, and their mean serves
        all; "own": each problem has weights of its own, as in the paper's one-vs-all scheme; "joint": one program over
        the ratios of all. Each task of a multilabel problem has weights of its own.
    steps
        As in `MKFDA`; none by default, as in the paper, whose kernels have k(x, x) = 1. Ratios compare similarities,
        which centering would make negative. Their weights depend on the scale of the kernels: take ("cosine",) where
        k(x, x) differs between kernels, and all are positive semidefinite. Of others it enlarges the entries of samples
        with a small k(x, x): random matrices with the mean of the kernels then look similar within classes.
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
        How good the weights are, for each program that was solved: `value` αᵀQα, `bound` (no weights have a lower
        value), `relaxed` (of the relaxation's solution), `rounded` (of the paper's rounding), `descended` (where a
        descent from there ends), `gap` = (value − bound)/(max Q − min Q), `iterations`, and `proof`: "theorem 1" or
        "theorem 2" where these foretell that the relaxation is exact, "bound" where only its bound proves it, "single
        ratio", or "none": better weights may exist, within the gap.
    gap_ : float or DataArray
        The proven relative gap of each classifier on its combined kernel; NaN where that is not known to be positive
        semidefinite.
    objective_ : float or DataArray
        Of each classifier: the dual of the support vector machine, or of least squares.
    dual_coef_, intercept_, classes_, n_passes_, status_
        As in `MKSVM`.
    n_cut_passes_ : int
        The passes among `n_passes_` that the weights took: one, unless all examples are too much to hold at once.
    history_ : Dataset
        Value, bound and weights of the relaxation, every 25 of its steps.

    Notes
    -----
    Source: Mukherjee, Singh, Peng, Hinrichs, CVPR 2010, Eqs. 4 to 15 and section 4.1. The dual bound is in
    `dmkl.solvers.cuts`.

    Where examples are alike, αᵀQα is but for a factor nearly (vᵀα)((u − v/2)ᵀα), and its minimum has one kernel or two.
    That leaves noise out, and good kernels too: the mean over several problems keeps more of them.

    Kernels need not be positive semidefinite for the weights. On an indefinite combination a support vector machine
    ends where no small change gains anything, and proves nothing: `gap_` is NaN. So it is where the combined kernel
    does not fit the memory of one task, and cannot be examined. The square loss refuses an indefinite combination if λ
    does not make up for it.

    Examples
    --------
    >>> import dmkl
    >>> model = dmkl.NCuts(n_examples=5, C=10.0)
    """

    _STATE = (*MarginClassifier._STATE, "n_cut_passes_")

    def __init__(
        self,
        n_examples: int = 5,
        *,
        loss: Loss = "hinge",
        C: float | Sequence[float] = 10.0,
        lam: float | Sequence[float] = 1.0,
        multiclass: Multiclass = "ovr",
        class_weight: ClassWeight = None,
        sharing: Sharing = "mean",
        steps: str | Sequence[str] = (),
        tol: float = 1e-4,
        max_iter: int = 5000,
        random_state: int = 0,
    ) -> None:
        self.n_examples = n_examples
        self.loss = loss
        self.C = C
        self.lam = lam
        self.multiclass = multiclass
        self.class_weight = class_weight
        self.sharing = sharing
        self.steps = steps
        self.tol = tol
        self.max_iter = max_iter
        self.random_state = random_state

    # --- fitting -----------------------------------------------------------------------------------------------------

    _TAKES_UNKNOWN_LABELS = False

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_choice("loss", self.loss, ("hinge", "square"))
        check_choice("sharing", self.sharing, ("mean", "own", "joint"))
        check_count("n_examples", self.n_examples)
        check_count("random_state", self.random_state, least=0)
        check_count("max_iter", self.max_iter)
        check_positive("tol", self.tol)
        check_positive("lam", self.lam)
        if self.loss == "square" and self.multiclass == "ovo":
            msg = "the square loss is for one class against the rest; take multiclass='ovr', or loss='hinge'"
            raise InputError(msg)

    def _check_weights(self) -> None:
        check_hinge(self.loss)

    def _check_data(self, K: KernelSet, targets: Targets) -> None:
        """Tell of classes with fewer samples than examples before the first pass."""
        super()._check_data(K, targets)
        _partitions(targets, self.n_examples, self.random_state)

    def _preparation(self, data: TrainingSet) -> Preparation:
        """The weights, which do not depend on the classifiers' price: one pass serves all of them."""
        key = (self.n_examples, self.sharing, self.tol, self.max_iter, self.random_state)
        return Preparation(key, self._cuts(data))

    def _cuts(self, data: TrainingSet) -> Solver[list[KernelCut]]:
        """A cut for each problem, or one for all."""
        problems, n = data.problems, data.n_kernels
        multilabel = problems.targets.kind == "multilabel"
        partitions = _partitions(problems.targets, self.n_examples, self.random_state)
        blocks = [partition.blocks(_most_columns(n)) for partition in partitions]
        products = yield tuple(Projection(block) for some in blocks for block in some)
        following = iter(products)
        several: list[tuple[Float, Float]] = []
        for number, (partition, some) in enumerate(zip(partitions, blocks, strict=True)):
            sums = np.concatenate([partition.sums(next(following)) for _ in some], axis=1)
            if data.fit.kernels is not None:
                sums = sums[data.fit.kernels]
            signs = partition.sides(problems, number if multilabel else None)
            several += zip(*ratios(sums, partition.sizes, signs), strict=True)
        if self.sharing == "joint" and not multilabel:
            several = [(np.concatenate([u for u, _ in several]), np.concatenate([v for _, v in several]))]
        progress.current().note(f"weights of {n:,} kernels for {len(several):,} cuts")
        found: list[KernelCut]
        found = yield tuple(Task("cut", best_cut, (u, v, self.tol, self.max_iter)) for u, v in several)
        return found

    def _method(self) -> SideBySide:
        return SideBySide(files=True)

    def _jobs(self, data: TrainingSet, prepared: list[KernelCut]) -> list[Job]:
        problems, cuts = data.problems, prepared
        weights = np.array([cut.alpha for cut in cuts])
        if self.sharing == "mean" and problems.targets.kind != "multilabel":
            weights = weights.mean(axis=0, keepdims=True).repeat(len(cuts), axis=0)
        prices = one_for_each("C", check_positive("C", self.C), len(problems))
        ridges = one_for_each("lam", check_positive("lam", self.lam), len(problems))

        def solver_of(k: int) -> partial[Solver[Outcome]]:
            own = 0 if len(cuts) == 1 else k
            wanted: SVM | GroupClassifier
            if self.loss == "hinge":
                noise = float(np.sum(weights[own] * data.facts.noise))
                wanted = SVM(weights[own], problems.h[k], self._prices(data, k, prices[k]), self.tol, noise=noise)
            else:
                # One group: its composite kernel is Σ_l √α_l √α_l K_l.
                target = _regression_target(problems, k)
                everywhere = np.zeros(len(target), dtype=np.intp)
                root = np.sqrt(weights[own])[:, None]
                wanted = GroupClassifier(root, everywhere, target, None, self.tol, lam=ridges[k])
            return partial(_classifier, wanted, weights[own], cuts[own].steps, self.tol)

        return data.jobs(solver_of)

    def _set_attributes(self, found: FitOutcome) -> None:
        problems, cuts = found.data.problems, found.prepared
        if problems.targets.kind == "multiclass" and self.sharing != "own":
            self.weights_ = self.weights_.isel({problems.dim: 0}, drop=True)
        self.n_cut_passes_ = found.n_prepared
        dim = "cut" if len(cuts) == 1 else str(problems.dim)
        names = ("value", "bound", "relaxed", "rounded", "descended", "gap", "iterations", "proof")
        table = xr.Dataset({name: ((dim,), [getattr(cut, name) for cut in cuts]) for name in names})
        self.cuts_ = table.isel({dim: 0}) if dim == "cut" else table.assign_coords({dim: self.dual_coef_[dim].values})
        converged = all(cut.converged for cut in cuts)
        told = self._told(converged=converged)
        if found.outcomes[worst(found.outcomes)].status is Status.CONVERGED:
            self.status_ = _UNPROVEN
        self.status_ = f"{self.status_} {told}"
        if not converged:
            warn(f"{type(self).__name__} stopped before its relaxation was solved. {told}", ConvergenceWarning)

    def _told(self, *, converged: bool) -> str:
        """What is known of the weights, and what to do."""
        gap = float(self.cuts_.gap.max())
        if not converged:
            return f"Weights: the relaxation ran out of steps, at a gap of {gap:.1e}: raise max_iter, or tol."
        if gap > self.tol:
            return (
                f"Weights: better ones may exist, by up to {gap:.1e} of the range of Q; the relaxation tells no more."
            )
        return "Weights: proven optimal to the tolerance."

    # --- saving ------------------------------------------------------------------------------------------------------

    def _state(self) -> dict[str, Any]:
        return {**super()._state(), "cuts": self.cuts_.to_dict()}

    def _set_state(self, state: dict[str, Any]) -> None:
        self.cuts_ = xr.Dataset.from_dict(state.pop("cuts"))
        super()._set_state(state)


def _regression_target(problems: Problems, number: int) -> Float:
    """What the square loss regresses on: `encode_targets` of the class that is positive, with mean zero."""
    signs = problems.h[number]
    share = float(np.mean(signs > 0))
    several = problems.targets.kind == "multiclass"
    scale = np.sqrt(share) if several else len(signs) * share * (1.0 - share)
    return np.asarray(((signs > 0) - share) / scale)


def _most_columns(n_kernels: int) -> int:
    """How wide a block may be of whose products with each kernel only blocks on the diagonal are needed.

    All examples go in one, and take one pass, unless a matrix of that width for each kernel is too much to hold.
    """
    return int((machine().task_bytes / (32 * n_kernels)) ** 0.5)


@dataclass(frozen=True, eq=False)
class _Partition:
    """Classes that partition the samples, in examples that do too."""

    labels: Index
    """(m,), the class of each sample"""
    examples: Index
    """(m,)"""
    n_classes: int

    @property
    def sizes(self) -> Float:
        """Samples of each class in each example, (examples, classes)."""
        counts = np.zeros((int(self.examples.max()) + 1, self.n_classes))
        np.add.at(counts, (self.examples, self.labels), 1.0)
        return counts

    def blocks(self, most: int) -> list[Float]:
        """Indicators of the classes in all examples, cut into blocks of so many columns at most."""
        n_examples, each = len(self.sizes), max(1, most // self.n_classes)
        runs = [range(start, min(start + each, n_examples)) for start in range(0, n_examples, each)]
        return [class_columns(self.labels, self.examples, self.n_classes, run) for run in runs]

    def sums(self, product: Float) -> Float:
        """Similarities between classes from BᵀK_lB, (kernels, examples, classes, classes)."""
        n, width, _ = product.shape
        each = product.reshape(n, width // self.n_classes, self.n_classes, width // self.n_classes, self.n_classes)
        return np.asarray(np.einsum("leaeb->leab", each))

    def sides(self, problems: Problems, only: int | None) -> Float:
        """The side of each class in each problem, or in one of them, (problems, classes)."""
        chosen = range(len(problems)) if only is None else [only]
        found = np.zeros((len(chosen), self.n_classes))
        for row, k in zip(found, chosen, strict=True):
            rows = slice(None) if problems.rows[k] is None else problems.rows[k]
            row[self.labels[rows]] = problems.h[k]
        return found


def _partitions(targets: Targets, n_examples: int, seed: int) -> list[_Partition]:
    """The classes as a partition; of a multilabel set one for each task."""
    found = []
    for h in targets.problems:
        labels = np.argmax(h, axis=1) if h.shape[1] > 1 else (h[:, 0] > 0).astype(np.intp)
        examples = sample_examples(labels, n_examples, seed, targets.classes)
        found.append(_Partition(labels, examples, len(targets.classes)))
    return found


def _classifier(wanted: SVM | GroupClassifier, weights: Float, steps: Sequence[Step], tol: float) -> Solver[Outcome]:
    """Learn a classifier on fixed weights; the steps are those of the weights."""
    answer = yield wanted
    gap = relative_gap(answer.primal, answer.dual, answer.primal)
    status = Status.CERTIFIED if gap <= tol else Status.STALLED
    if isinstance(wanted, SVM) and not answer.concave:
        # The gap vanishes at every point that no small change improves, of which there may be many.
        gap, status = np.nan, Status.CONVERGED if gap <= tol else status
    return Outcome(status, weights, answer.u[:, None], answer.dual, answer.primal, gap, np.array([answer.bias]), steps)
