"""ℓp-norm multiple kernel Fisher discriminant analysis: targets, objective, certificate.

Notation (Yan, Kittler, Mikolajczyk, Tahir, JMLR 13, 2012): H (m, c) are the targets, α (m, c) the dual variables, β the
kernel weights, λ the ridge. For one problem

    S(α, β) = Σ_k [ ¼ α_kᵀα_k + (1/4λ) α_kᵀK(β)α_k − h_kᵀα_k ],   K(β) = Σ_j β_j K_j,

is minimized over α and maximized over β ≥ 0, ‖β‖_p ≤ 1 (Eqs. 10 and 19).

If sample i has the weight d_i, so that the loss is Σ_i d_i‖h_i − f(x_i)‖², this is the problem of D^{1/2}K_jD^{1/2} and
D^{1/2}H, D = diag(d): its solution γ solves ½γ + D^{1/2}K(β)D^{1/2}γ/2λ = D^{1/2}H, and α = D^{1/2}γ solves
(½D⁻¹ + K(β)/2λ)α = H. The scaled kernels are positive semidefinite, so every solver and the certificate remain valid.
An integer weight is equivalent to d_i copies of a sample. With K̃ = EKEᵀ and H̃ = EH for the matrix E of copies,
EᵀE = D, any γ corresponds to α̃ = ED^{−1/2}γ, which is equal for copies as the optimal α̃ is, with ‖α̃‖² = ‖γ‖²,
H̃ᵀα̃ = HᵀD^{1/2}γ and α̃ᵀK̃_jα̃ = γᵀD^{1/2}K_jD^{1/2}γ: S, F and ‖R‖² are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import filterfalse
from typing import Any, Literal, Protocol, Self

import numpy as np
import numpy.typing as npt

from dmkl.arrays import Array, Float, Index, is_known, plain_repr, refuse_codes, refuse_dates
from dmkl.errors import refuse

# From this value on p counts as infinite: every weight of the optimum is one to within 1e-5.
_INFINITE_P = 1e6
DEPENDENT = 1e-13
"""Singular values of targets below this share of the largest are zero."""


def as_exponent(p: float) -> float:
    """The exponent of the norm, where values from 1e6 on mean ∞; InputError for a value below 1 or not a number."""
    value = float(p)
    # The negated comparison also rejects NaN.
    if not value >= 1:
        refuse(f"p must be at least 1 (from 1e6 on it counts as infinite), got {value!r}")
    return float(np.inf) if value >= _INFINITE_P else value


def norm(x: Float, p: float) -> float:
    """‖x‖_p, without overflow or underflow for large p."""
    largest = float(np.abs(x).max(initial=0.0))
    if largest == 0 or np.isinf(p):
        return largest
    # Dividing by the largest entry first keeps every power in [0, 1].
    return largest * float(np.sum(np.abs(x / largest) ** p) ** (1.0 / p))


def dual_norm(q: Float, p: float) -> float:
    """The maximum of βᵀq over β ≥ 0, ‖β‖_p ≤ 1: the norm of the positive part of q for p* = p/(p − 1)."""
    return norm(np.maximum(q, 0.0), np.inf if p == 1 else 1.0 if np.isinf(p) else p / (p - 1.0))


def uniform_weights(n: int, p: float) -> Float:
    """β_j = n^(−1/p): equal weights on the unit sphere."""
    return np.ones(n) if np.isinf(p) else np.full(n, n ** (-1.0 / p))


def onto_sphere(beta: Float, p: float) -> Float:
    """β without its negative part, scaled to ‖β‖_p = 1 (S grows with every β_j, so the optimum has norm one)."""
    positive = np.maximum(beta, 0.0)
    size = norm(positive, p)
    return uniform_weights(len(beta), p) if size == 0 else positive / size


def steepest(q: Float, p: float) -> Float:
    """The β of the ball that maximizes βᵀq: β_j ∝ q_j^(1/(p−1)) for 1 < p < ∞."""
    positive = np.maximum(q, 0.0)
    if np.isinf(p) or not positive.any():
        return uniform_weights(len(q), p)
    if p == 1:
        # A linear function on the simplex is largest at a vertex.
        return np.asarray(np.eye(len(q))[int(np.argmax(positive))])
    # Hölder's inequality with equality. Dividing by the largest q keeps the power from overflowing for p near 1.
    return onto_sphere((positive / positive.max()) ** (1.0 / (p - 1.0)), p)


# --- targets -----------------------------------------------------------------------------------------------------

Kind = Literal["binary", "multiclass", "multilabel", "regression", "clusters"]


@dataclass(frozen=True, eq=False)
class Targets:
    """The targets of one or more independent problems over the same samples."""

    kind: Kind
    """One problem if binary or multiclass, one binary problem for each output if multilabel, one for each target of a
    regression; one for clusters, which are learnt without labels."""
    classes: Array  # the labels, sorted; (0, 1) for a multilabel set; none for a regression
    problems: tuple[Float, ...]
    """H of each problem over its labeled samples, (m, c): one column, or one for each class (multiclass)."""
    labels: Array  # the labels that were encoded, (m,) or (m, outputs); unknown ones are NaN
    rows: tuple[Index | None, ...]
    """The labeled samples of each problem; None for all. Problems with the same samples share the array."""
    means: Float  # the mean that was subtracted from the target of each regression problem
    weights: tuple[Float, ...] | None = None
    """The sample weights d of the labeled samples of each problem, (m,); None for equal weights."""

    @property
    def dim(self) -> str | None:
        """The dimension of independent problems, "task" or "target"; None for a single problem."""
        if self.labels.ndim == 1:
            return None
        return "target" if self.kind == "regression" else "task"

    @property
    def one_column(self) -> bool:
        """Whether a sample has one score: a single problem of two classes or of a regression."""
        return self.dim is None and self.kind != "multiclass"

    @cached_property
    def all_known(self) -> bool:
        """Whether every sample has a label for every output."""
        return all(rows is None for rows in self.rows)

    @cached_property
    def values(self) -> tuple[Float, ...]:
        """The original targets of each regression problem, (m, 1)."""
        return tuple(h + mean for h, mean in zip(self.problems, self.means, strict=True))

    @cached_property
    def sizes(self) -> tuple[Float, ...]:
        """The total weight of the labeled samples of each class, (classes,), for each classification problem."""
        weights = self.weights or [None] * len(self.problems)
        return tuple(
            np.bincount(class_of(h), d, minlength=len(self.classes)).astype(np.float64)
            for h, d in zip(self.problems, weights, strict=True)
        )

    def weighted(self, weights: Sequence[Float]) -> Targets:
        """The targets for sample weights d: H as if sample i were repeated d_i times.

        The sum of weights replaces the number of samples (of a class) in JMLR Eqs. 4 and 18; in a regression
        H = y − Σ_i d_iy_i/Σd.
        """
        if self.kind == "regression":
            means = np.array([np.average(y[:, 0], weights=d) for y, d in zip(self.values, weights, strict=True)])
            problems = tuple(y - mean for y, mean in zip(self.values, means, strict=True))
            return replace(self, problems=problems, means=means, weights=tuple(weights))
        encode = _multiclass if self.kind == "multiclass" else _binary
        encoded = [encode(class_of(h), d) for h, d in zip(self.problems, weights, strict=True)]
        return replace(self, problems=tuple(encoded), weights=tuple(weights))

    @cached_property
    def scaled(self) -> tuple[Float, ...]:
        """D^{1/2}H of each problem; H without sample weights."""
        return self._scaled(self.problems)

    @cached_property
    def scaled_values(self) -> tuple[Float, ...]:
        """D^{1/2}y of each regression problem; y without sample weights."""
        return self._scaled(self.values)

    def _scaled(self, targets: tuple[Float, ...]) -> tuple[Float, ...]:
        if self.weights is None:
            return targets
        return tuple(np.sqrt(d)[:, None] * h for h, d in zip(targets, self.weights, strict=True))


def encode_targets(y: npt.ArrayLike, n_samples: int, tasks: Array | None = None) -> Targets:
    """Turn labels into the targets of Fisher discriminant analysis.

    Labels are (m,), whole numbers or strings that can be sorted, or (m, tasks) of 0 and 1, or of −1 and 1; `tasks`
    names the latter in messages. Binary: a_i = 1/m⁺ for the second of the two sorted classes, −1/m⁻ for the first (JMLR
    Eq. 4). Multiclass: h_ik = √(m/m_k) − √(m_k/m) where y_i = k, −√(m_k/m) elsewhere (JMLR Eq. 18). Multilabel: each
    column of a 0/1 matrix is a binary problem over the samples whose label is known (see `dmkl.arrays.is_known`).

    InputError is raised if the length is not m = `n_samples`, a label is not a class or infinite, a label of (m,) is
    missing, or there is only one class.
    """
    labels = _shaped(y, n_samples)
    if labels.ndim == 2:
        names, rule = _names(labels, tasks), "a two-dimensional y holds one task a column, 0 or 1 each"
        labels = zero_or_one(as_numbers(labels, f"{rule}; for classes give a vector"))
        has_label = ~np.isnan(labels)
        if not np.isin(labels[has_label], (0, 1)).all():
            others = ", ".join(f"{value:g}" for value in np.unique(labels[has_label])[:5])
            way_out = "say which of them stands for unknown labels (unknown=, --unknown), or for classes give a vector"
            refuse(f"{rule} (or -1 or 1), found {others}; {way_out}")
        # Each output is a problem of its own, so each needs both labels among its labeled samples.
        for name, column, there in zip(names, labels.T, has_label.T, strict=True):
            if len(present := np.unique(column[there])) < 2:
                labels_present = f"only the label {present[0]:g}" if len(present) else "no known labels"
                refuse(f"task {name!r} has {labels_present} in training, expected both 0 and 1")
        rows = _labeled_rows(has_label)
        taken = [column if at is None else column[at] for column, at in zip(labels.T, rows, strict=True)]
        problems = tuple(_binary((column == 1).astype(np.intp)) for column in taken)
        labels = labels.astype(np.int64) if has_label.all() else labels
        return Targets("multilabel", np.array([0, 1]), problems, labels, rows, np.zeros(0))
    _refuse_missing(labels)
    if labels.dtype.kind == "f" and (broken := labels[labels != np.floor(labels)]).size:
        way_out = "classes are integers or strings, so bin or name them. Numbers are for regression: MKRidge"
        refuse(f"y holds numbers that are not whole ({broken[0]}); {way_out}")
    try:
        classes, index = np.unique(labels, return_inverse=True)
    except TypeError as error:
        refuse(f"the labels in y cannot be sorted: {error}; use integers or strings throughout", error)
    if any(isinstance(name, Sequence) and not isinstance(name, str | bytes) for name in classes.tolist()):
        refuse(f"a class is an integer or a string, found {plain_repr(classes[0])}; join its parts into one string")
    if len(classes) < 2:
        refuse(f"y holds a single class, {plain_repr(classes[0])}; a discriminant needs at least two")
    if len(classes) == 2:
        return Targets("binary", classes, (_binary(index),), labels, (None,), np.zeros(0))
    return Targets("multiclass", classes, (_multiclass(index),), labels, (None,), np.zeros(0))


def encode_values(y: npt.ArrayLike, n_samples: int, names: Array | None = None) -> Targets:
    """Turn numbers into the targets of ridge regression: each minus its mean, H = y − ȳ.

    Numbers are (m,), or (m, targets) for independent problems, each over the samples with a known value (see
    `dmkl.arrays.is_known`). `names` names the targets in messages.

    InputError is raised if the length is not m = `n_samples`, a value is not a number or infinite, a value of (m,) is
    missing, or all values of a target are equal.
    """
    labels = _shaped(y, n_samples)
    if labels.ndim == 1:
        _refuse_missing(labels)
    labels = target_values(labels)
    columns = labels.reshape(n_samples, -1)
    has_value = ~np.isnan(columns)
    rows = _labeled_rows(has_value)
    problems, means = [], np.zeros(len(rows))
    for k, (name, column, at) in enumerate(zip(_names(columns, names), columns.T, rows, strict=True)):
        value = column if at is None else column[at]
        of_target = f"target {name!r}" if labels.ndim == 2 else "y"
        if not len(value) or value.min() == value.max():
            values_present = f"a single value, {value[0]:g}," if len(value) else "no known value"
            rule = "a regression needs at least two that differ: leave it out"
            refuse(f"{of_target} has {values_present} in training; {rule}")
        # The mean is the intercept: centered kernels span functions of mean zero over the training samples.
        means[k] = value.mean()
        problems.append((value - means[k])[:, None])
    return Targets("regression", np.zeros(0), tuple(problems), labels, rows, means)


def with_unknown(labels: npt.ArrayLike, code: Any = None) -> Array:
    """Labels with NaN (None among strings) in place of the code for unknown labels; unchanged without a code.

    InputError is raised if labels are numbers and the code is not, and for other codes of missing values among numbers.
    """
    values = np.asarray(labels)
    refuse_dates(values)
    if values.dtype.kind not in "biuf":
        if code is not None:
            values = values.astype(object)
            values[values.astype(str) == str(code)] = None
        refuse_codes("the labels are", values, "say so (unknown='{code}', --unknown '{code}') or write NA")
        return values
    if code is None:
        return values
    try:
        hits = values == float(code)
    except (TypeError, ValueError) as error:
        refuse(f"unknown must be a number, as the labels are, got {code!r}", error)
    return np.where(hits, np.nan, values) if hits.any() else values


def zero_or_one(labels: Array) -> Array:
    """Labels (m, outputs) of −1 and 1 as 0 and 1; all other labels, and unknown ones, unchanged."""
    numbers = labels.ndim == 2 and labels.dtype.kind in "if"
    if not numbers or not np.isin(labels[is_known(labels)], (-1, 1)).all():
        return labels
    return np.where(labels == -1, 0, labels)


def _shaped(y: npt.ArrayLike, n_samples: int) -> Array:
    """Labels in the shape (m,) or (m, outputs)."""
    labels = np.asarray(y)
    if labels.ndim == 2 and labels.shape[1] == 1 and is_known(labels).all():
        labels = labels[:, 0]
    if labels.ndim not in (1, 2) or labels.shape[0] != n_samples:
        refuse(f"y has shape {labels.shape}, expected ({n_samples},) or ({n_samples}, tasks): a label for each sample")
    if labels.dtype.kind == "f" and np.isinf(labels).any():
        refuse(
            f"y holds {np.count_nonzero(np.isinf(labels))} infinite labels; correct them, or leave those samples out"
        )
    return labels


def _refuse_missing(labels: Array) -> None:
    missing = np.count_nonzero(~is_known(labels))
    if missing:
        refuse(
            f"y holds {missing} labels that are missing; leave those samples out, as K[known, known] and y[known]: "
            "unknown labels are for tasks, the columns of a two-dimensional y"
        )


def target_values(labels: Array) -> Float:
    """Targets of a regression as float64, NaN if unknown; InputError if a value is not a number."""
    return as_numbers(labels, "the targets of a regression are numbers; for classes take a classifier")


def as_numbers(labels: Array, rule: str) -> Float:
    """Labels as float64, NaN if unknown."""
    has_label = is_known(labels)
    numbers = np.full(labels.shape, np.nan)
    try:
        numbers[has_label] = labels[has_label].astype(np.float64)
    except (TypeError, ValueError) as error:
        values = labels[has_label].tolist()
        refuse(f"{rule}; found {next(filterfalse(_is_number, values), values[0])!r}", error)
    return numbers


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def _names(labels: Array, tasks: Array | None) -> list[str]:
    """The names of the columns, or their numbers."""
    return [str(k) for k in (range(labels.shape[1]) if tasks is None else tasks)]


def _labeled_rows(has_label: npt.NDArray[np.bool_]) -> tuple[Index | None, ...]:
    """The rows with a label in each column, None for all rows; equal columns share one array."""
    shared: dict[bytes, Index | None] = {np.ones(len(has_label), dtype=bool).tobytes(): None}
    return tuple(shared.setdefault(column.tobytes(), np.flatnonzero(column)) for column in has_label.T)


def _binary(index: Index, weights: Float | None = None) -> Float:
    """JMLR Eq. 4, (m, 1), for the classes 0 and 1."""
    sizes = np.bincount(index, weights).astype(np.float64)
    return np.asarray(np.where(index == 1, 1.0 / sizes[1], -1.0 / sizes[0])[:, None])


def _multiclass(index: Index, weights: Float | None = None) -> Float:
    """JMLR Eq. 18, (m, classes)."""
    sizes = np.bincount(index, weights).astype(np.float64)
    m = sizes.sum()
    # Every column sums to zero over the samples: m_k √(m/m_k) − m √(m_k/m) = 0.
    h = np.tile(-np.sqrt(sizes / m), (len(index), 1))
    h[np.arange(len(index)), index] += np.sqrt(m / sizes[index])
    return np.asarray(h)


def class_of(h: Float) -> Index:
    """The class of each sample, from its targets."""
    return (h[:, 0] > 0).astype(np.intp) if h.shape[1] == 1 else np.argmax(h, axis=1)


def row_space(h: Float) -> Float:
    """Q, (r, c), with QQᵀ = I and HQᵀQ = H, for targets H (m, c) of rank r: those of c classes have rank c − 1."""
    _, values, rows = np.linalg.svd(h, full_matrices=False)
    return np.asarray(rows[: max(1, np.count_nonzero(values > DEPENDENT * values.max(initial=0.0)))])


# --- objective and certificate -----------------------------------------------------------------------------------


_TINY = float(np.finfo(np.float64).tiny)
# Relative amount by which bounds may cross because of rounding in single precision sums.
_CROSSING = 1e-6


# Parts of an objective below this share of it are its rounding.
_RESOLVED = 16 * float(np.finfo(np.float64).eps)


def relative_gap(upper: float, lower: float, size: float, part: float = np.inf) -> float:
    """The proven gap upper − lower relative to |size|, or to a smaller part; infinite if the bounds contradict.

    `size` is that of the bounds, and `part` the part of it that kernel weights can change. Both bound the same
    optimum, so a lower bound above an upper one shows that a point is outside its set or that the arithmetic failed:
    such a pair proves nothing. If they cross by rounding alone, the gap is zero.
    """
    size = abs(size) or _TINY
    gap, scale = upper - lower, gap_scale(size, part)
    is_proof = gap >= -max(_CROSSING * scale, _RESOLVED * size) and np.isfinite(size)
    return max(gap, 0.0) / scale if is_proof else np.inf


def gap_scale(size: float, part: float) -> float:
    """The smaller of a size > 0 and a part of it; a part that is rounding counts as the least that is resolved."""
    return max(min(size, part), _RESOLVED * size)


@dataclass(frozen=True)
class Certificate:
    """The largest possible distance of a pair (α, β) from the optimum, proven from the pair alone.

    For any α, F(α) = ¼‖α‖² − tr(Hᵀα) + h(q(α)) bounds the optimum from above, where h(q) is the maximum of βᵀq over the
    set of weights: ‖q‖_p* for the ball of norm p (JMLR), others in `dmkl.solvers.weight_sets`. For any β in the set,
    S(α, β) − ‖R‖² bounds it from below, where R = H − ½α − (1/2λ)K(β)α is the residual of the α-step: S is quadratic in
    α with Hessian A = ½(I + K(β)/λ) and gradient −R, so its minimum over α is lower by ½ tr(RᵀA⁻¹R), and A ⪰ ½I because
    the kernels are positive semidefinite. Hence the optimum is in [S − ‖R‖², F].
    """

    objective: float  # S(α, β)
    residual_sq: float  # ‖R‖², summed over all columns, or a tighter bound of S(α, β) − min_α S
    gradient: Float  # q, (n,)
    kernel_part: float  # βᵀq, the part of S that depends on the kernels
    support: float  # the maximum of βᵀq over the set of weights
    rest: float  # ‖H − ½α‖², which is ‖H‖² − |S| − βᵀq for any α; infinite if it is unknown

    @classmethod
    def of(cls, beta: Float, gradient: Float, linear: float, weights: Support, residual_sq: float, rest: float) -> Self:
        """The certificate from q(α), ¼‖α‖² − tr(Hᵀα) (`linear`) and ‖H − ½α‖² (`rest`)."""
        kernel_part = float(beta @ gradient)
        support = weights.support(gradient)
        return cls(linear + kernel_part, residual_sq, gradient, kernel_part, support, rest)

    @property
    def upper(self) -> float:
        """F(α), the maximum of S(α, β) over the set of weights, and so at least the saddle value for any α."""
        return self.objective + (self.support - self.kernel_part)

    @property
    def size(self) -> float:
        """|S|, positive."""
        return abs(self.objective) or _TINY

    @property
    def scale(self) -> float:
        """min(|S|, ‖H‖² − |S|), to which gaps are relative.

        The objective is between −‖H‖², that of kernels without effect, and 0. For large λ weights can change
        ‖H‖² − |S| alone, which is of the order of 1/λ: a gap relative to |S| would be small for any weights.
        """
        return gap_scale(self.size, self.rest + self.kernel_part)

    @property
    def weights_gap(self) -> float:
        """The part of the gap that better weights would close."""
        # F − S as a difference of forms: that of F and S has the rounding of ‖H‖², which can be larger.
        return relative_gap(self.support, self.kernel_part, self.size, self.rest + self.kernel_part)

    @property
    def alpha_gap(self) -> float:
        """The part of the gap that a better α-step would close."""
        return self.residual_sq / self.scale

    @property
    def gap(self) -> float:
        """(F − S + ‖R‖²)/min(|S|, ‖H‖² − |S|): the relative gap."""
        return self.weights_gap + self.alpha_gap

    @property
    def share(self) -> float:
        """βᵀq relative to `scale`, in (0, 1].

        It is the smallest positive number if rounding makes βᵀq negative: the share is then unknown.
        """
        # For an eigenvalue k of K(β)/λ and unit targets, |S| = 1/(1 + k), ‖H‖² − |S| = k/(1 + k) and βᵀq is their
        # product, so the share is at most one at the minimum over α.
        return min(1.0, max(self.kernel_part / self.scale, _TINY))


def gradient(alpha: Float, products: Array, lam: float) -> Float:
    """q_j = (1/4λ) Σ_k α_kᵀK_jα_k, the derivative of S in β_j, from the products K_jα, (n, m, c)."""
    return np.asarray(np.einsum("mc,nmc->n", alpha, products, dtype=np.float64) / (4.0 * lam))


class Support(Protocol):
    """A set of weights, as far as the certificate uses it."""

    def support(self, q: Float) -> float:
        """The maximum of βᵀq over the set, or an upper bound of the maximum."""


def certify(
    alpha: Float, products: Array, beta: Float, h: Float, lam: float, weights: Support
) -> tuple[Certificate, Float]:
    """Certify α (m, c) and β (n,), a point of the set of weights, for targets H (m, c); returns the residual R too.

    Everything is computed from α itself and the products K_jα (n, m, c), in float64: quantities that an iteration
    updates can drift, and would certify values that the returned pair does not have.
    """
    # S(α, β) = ¼‖α‖² − tr(Hᵀα) + βᵀq(α) is linear in β: the first two terms are common to both bounds.
    linear = 0.25 * float(np.sum(alpha * alpha)) - float(np.sum(h * alpha))
    # The products may be float32; they are summed in float64, so that R is the residual of the stored products.
    combined = np.tensordot(beta, products, axes=1).astype(np.float64, copy=False)
    residual = h - 0.5 * alpha - combined / (2.0 * lam)
    residual_sq = float(np.sum(residual * residual))
    q, rest = gradient(alpha, products, lam), float(np.sum((h - 0.5 * alpha) ** 2))
    return Certificate.of(beta, q, linear, weights, residual_sq, rest), residual
