"""The interface of solvers, as plain data: the requests that they may make of the kernels, and the outcome they return.

A solver is a generator. It yields a request, receives the answer from `driver`, and returns its result; it never reads
the kernels itself. So independent problems advance side by side: the driver collects the requests of all solvers and
reads the stored kernels once for all of them.

An outcome says how the solver ended, the pair that it returns, and what is *proven* about its objective: the other end
of an interval that contains the optimum, and the length of that interval relative to the objective, or to the part that
weights can change if that is smaller.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

import numpy as np

from dmkl.arrays import Float, Index
from dmkl.errors import DegenerateKernelError

Result = TypeVar("Result", covariant=True)


Translated = tuple["Request", Callable[[Any], Any]]
"""A request that replaces another one, and a function from its answer to the answer of the replaced one."""


class Request:
    """A request of a solver."""

    def on_kernels(self, kernels: Index, n_kernels: int) -> Translated:
        """A request on some of the kernels as one on all, whose other kernels have weights of zero."""
        if not hasattr(self, "weights"):
            return self, _unchanged
        return replace(self, weights=spread(self.weights, kernels, n_kernels)), _unchanged  # type: ignore[type-var]

    def on_rows(self, rows: Index, n_samples: int) -> Translated:
        """A request on some of the samples as one on all."""
        msg = f"a problem over some of the samples cannot ask for {type(self).__name__}"
        raise NotImplementedError(msg)


def _unchanged(answer: Any) -> Any:
    return answer


def spread(values: Float, places: Index, size: int) -> Float:
    """Scatter values at some positions to all positions, (size, ...), with zeros elsewhere."""
    wide = np.zeros((size, *values.shape[1:]))
    wide[places] = values
    return wide


class ProductRequest(Request):
    """A product with kernels; requests of all kinds share a pass."""

    want: ClassVar[Literal["each", "sum", "project"]]
    block: Float
    weights: Float | None = None
    columns: Index | None = None
    exact: bool = True  # Whether the product is in float64; otherwise it is in the precision of the kernels


@dataclass(frozen=True, eq=False)
class EachProduct(ProductRequest):
    """K_jV for every kernel, in float64; answered by (n, rows, b)."""

    want = "each"
    block: Float  # V, (columns, b)
    columns: Index | None = None
    """The samples of the block's rows, if all other rows are zero: only tiles with their columns are read."""

    def on_kernels(self, kernels: Index, n_kernels: int) -> Translated:
        if self.columns is None and len(kernels) == 1:
            # A sum with one term instead of products with every kernel, most of which would be dropped.
            alone = CombinedProduct(self.block, spread(np.ones(1), kernels, n_kernels), exact=True)
            return alone, lambda product: product[None]
        return self, lambda products: products[kernels]

    def on_rows(self, rows: Index, n_samples: int) -> Translated:
        """See `Request.on_rows`: the kernel over the subset is a block of the whole kernel."""
        return EachProduct(spread(self.block, rows, n_samples)), lambda products: products[:, rows]


@dataclass(frozen=True, eq=False)
class CombinedProduct(ProductRequest):
    """Σ_j K_j V diag(w_j); answered by (rows, b)."""

    want = "sum"
    block: Float  # V, (columns, b)
    weights: Float = field()  # w, (n,) for all columns, or (n, b)
    exact: bool = False


@dataclass(frozen=True, eq=False)
class Projection(ProductRequest):
    """BᵀK_jB for every kernel, in float64; answered by (n, b, b) for a block B (m, b)."""

    want = "project"
    block: Float

    def on_kernels(self, kernels: Index, n_kernels: int) -> Translated:
        return self, lambda forms: forms[kernels]


@dataclass(frozen=True, eq=False)
class CombinedEntries(Request):
    """K(β) over some samples, in float64; answered by (b, b)."""

    weights: Float
    index: Index


class Root(NamedTuple):
    """A matrix K = AAᵀ by its factor A, (m, D)."""

    factor: Float


@dataclass(frozen=True, eq=False)
class CombinedKernel(Request):
    """K(β) over all samples, in float64; answered by (m, m), or by a `Root` where factors of kernels are in memory."""

    weights: Float


@dataclass(frozen=True, eq=False)
class CombinedFactor(Request):
    """A Cholesky factor of ½(I + K(β)/λ); answered by a handle of the factor, for `OfFactor`."""

    weights: Float
    lam: float


@dataclass(frozen=True, eq=False)
class OfFactor(Request):
    """The value of a method of `dmkl.numerics.cholesky.Factor`, such as A⁻¹B of `Factor.solve`; it takes no pass."""

    factor: Any  # The answer to `CombinedFactor`
    method: Callable[..., Any]
    arguments: tuple[Float, ...] = ()


@dataclass(frozen=True, eq=False)
class FactorTraces(Request):
    """tr A⁻¹K_j of every kernel, and tr A⁻¹ last, by a factor of A; answered by (n + 1,)."""

    factor: Any

    def on_kernels(self, kernels: Index, n_kernels: int) -> Translated:
        return self, lambda traces: traces[[*kernels, n_kernels]]


@dataclass(frozen=True, eq=False)
class InnerProducts(Request):
    """⟨PK_iP, PK_jP⟩ and ⟨PK_iP, P⟩ for P = I − QQᵀ, in float64; answered by (n + 1, n + 1), with P as the last one."""

    basis: Float  # Q, (m, r), with orthonormal columns
    products: Float  # K_jQ, (n, m, r)

    def on_kernels(self, kernels: Index, n_kernels: int) -> Translated:
        with_last = [*kernels, n_kernels]
        wide = replace(self, products=spread(self.products, kernels, n_kernels))
        return wide, lambda inner: inner[np.ix_(with_last, with_last)]


@dataclass(frozen=True, eq=False)
class InverseDiagonals(Request):
    """The diagonal of A⁻¹ − 2P, A = ½(I + K(β)/λ), at one or more λ; answered by (λ, 1, m).

    P is the projection onto the vectors that the steps project out of the kernels, on which A⁻¹ = 2I. With a vector v
    the answer is (λ, 2, m), and A⁻¹v the second row of each λ.
    """

    weights: Float
    lams: tuple[float, ...]
    vector: Float | None = None  # v, (m,), for steps that project nothing out; equal for all requests of one lens


@dataclass(frozen=True, eq=False)
class SVM(Request):
    """A support vector machine on K(β), or regularized least squares if `lam` is given; answered by a `SVMSolution`.

    With `groups` it is of all samples, on the composite kernel Σ_j β_j^{c(i)} β_j^{c(k)} K_j(i, k) of group-sensitive
    MKL.
    """

    weights: Float  # β, (n,), or (n, G) with groups
    y: Float  # (m,), 1 and −1, or targets
    C: float | Float | None  # The bound on α, or one for each sample, (m,); None for least squares
    tol: float  # The relative gap that is requested; the solution may be worse where rounding prevents it
    start: Float | None = None  # The initial u, (m,), for example from other weights
    rows: Index | None = None  # The training samples, to which y and u belong; None for all
    ridge: float = 0.0  # δ: the machine is trained on K(β) + δI
    noise: float | None = None
    """How far below zero rounding may bring xᵀK(β)x for unit vectors x, if K(β) is to be tested for indefiniteness;
    None for kernels that are assumed to be positive semidefinite."""
    groups: Index | None = None  # c, (m,)
    lam: float | None = None

    def on_rows(self, rows: Index, n_samples: int) -> Translated:
        return replace(self, rows=rows), _unchanged


@dataclass(frozen=True, eq=False)
class Task(Request):
    """A function of small arguments, run as a Dask task; answered by its result, once for all solvers that share it."""

    name: str  # Prefix of the task's key
    function: Callable[..., Any]
    arguments: tuple[Any, ...]

    def on_rows(self, rows: Index, n_samples: int) -> Translated:
        return self, _unchanged


Solver = Generator[Request | tuple[Request, ...], Any, Result]
"""Yields a request and receives its answer, or yields a tuple of requests and receives a list of answers."""


def ask(request: Request) -> Solver[Any]:
    """A solver that makes one request and returns the answer."""
    return (yield request)


def run_with(solver: Generator[Any, Any, Result], answer: Any = None, several: Any = None) -> Result:
    """Run a solver to its end with the answers of a function, or those of `several` to tuples of requests."""
    reply, each = None, several or (lambda requests: list(map(answer, requests)))
    while True:
        try:
            request = solver.send(reply)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        reply = each(request) if isinstance(request, tuple) else answer(request)


# --- outcomes ---------------------------------------------------------------------------------------------------------


WORDS = ("certified", "finished", "converged", "open")
"""The ways in which a fit can end, from the best to the worst, as written in tables, figures and files."""


class Status(enum.Enum):
    """How a solver ended: a `word` of `WORDS`, and `advice`, a sentence on what happened and what to do."""

    def __init__(self, word: str, advice: str) -> None:
        self.word, self.advice = word, advice

    CERTIFIED = ("certified", "The gap is proven to be within the tolerance.")
    FINISHED = ("finished", "The gap is proven to be within the tolerance, by the solver that finishes open problems.")
    CONVERGED = ("converged", "The solver met its stopping rule; nothing is proven about the distance to the optimum.")
    SMALL_DECREASE = (
        "converged",
        "The objective fell by less than the tolerance over the last five steps, or the line search lowered it no "
        "more. The distance to a minimum is not known: a smaller tol may find a lower objective.",
    )
    ITERATIONS = (
        "open",
        "The iteration cap was reached before the gap: raise max_iter, or accept the gap that is reported.",
    )
    BASIS = (
        "open",
        "The subspace was as large as it was allowed to be before the gap was proven: allow more with "
        'solver=dmkl.Subspace(basis=...) or max_iter=, or let another solver finish, as Subspace(finish="auto").',
    )
    STALLED = (
        "open",
        "The gap stopped shrinking above the tolerance: the arithmetic resolves no more. Take a larger λ or tol, or "
        "store the kernels in float64.",
    )
    FALLING = ("open", "The iteration cap was reached while the objective still fell: raise max_iter, or tol.")

    @property
    def code(self) -> int:
        """The position of the word in `WORDS`."""
        return WORDS.index(self.word)


@dataclass(frozen=True, eq=False)
class Step:
    """One step of a solver, for its history."""

    weights: Float | None  # (n,), if it has them
    figures: Mapping[str, float]  # objective, bounds and counts by name: the same names in every step of a solver


@dataclass(frozen=True, eq=False)
class Outcome:
    """The solution of one problem, as far as the solver came.

    The kernel weights are (n,), or (n, groups). With dual variables, (m, columns), and the bias, (columns,), the score
    of a sample x is Σ_j weights_j Σ_i k_j(x, x_i) dual_i + bias; they are None if not requested. A bias (columns,) is
    an intercept of the model, even if it is zero; one number stands for all columns. `objective` is that of the
    returned pair, `bound` a proven bound of the optimum from the other side, and `gap` the proven relative gap: both
    are NaN without a proof, and the gap is infinite if objective and bound contradict each other
    (`dmkl.numerics.fisher.relative_gap`). `steps` is the history, oldest first. `weights_error` estimates the largest
    error of a weight relative to the largest weight; NaN if it was not estimated.

    `scores` of the held-out rows, (rows, columns), are there if the solver has them from the same products. `inverse`
    is the diagonal of A⁻¹, (m,), where A is the system that the dual variables solve, if leave-one-out scores were
    requested and combined kernels fit in memory (`dmkl.solvers.fisher.registry`). For kernels that are not centered it
    is (m, 2), with A⁻¹D^{1/2}1 as the second column. `interpolated` says that it is interpolated between those of other
    problems. `extra` are further arrays of the solver, by name.
    """

    status: Status
    weights: Float
    dual: Float | None
    objective: float
    bound: float = np.nan
    gap: float = np.nan
    bias: Float | float = 0.0
    steps: Sequence[Step] = field(default_factory=tuple)
    scores: Float | None = None
    inverse: Float | None = None
    interpolated: bool = False
    extra: Mapping[str, Float] = field(default_factory=dict)
    weights_error: float = np.nan

    def __post_init__(self) -> None:
        if self.dual is not None and np.ndim(self.dual) != 2:
            msg = f"dual variables are (samples, columns), got shape {np.shape(self.dual)}"
            raise ValueError(msg)
        # No solver can claim a proof without a number: NaN and infinity fail this test as well.
        if self.status in (Status.CERTIFIED, Status.FINISHED) and not 0.0 <= self.gap < np.inf:
            msg = f"an outcome is certified by a finite gap of zero or more, got {self.gap}"
            raise ValueError(msg)


def worst(outcomes: Sequence[Outcome]) -> int:
    """The position of the outcome that ended worst: by its word, then by its gap."""
    # The first of equals, so that the answer does not depend on more than the outcomes.
    return max(range(len(outcomes)), key=lambda k: (outcomes[k].status.code, np.nan_to_num(outcomes[k].gap), -k))


def check_finite(answer: Any) -> None:
    """Raise DegenerateKernelError if an array, or one in a list, contains NaN or infinity."""
    for array in answer if isinstance(answer, list | tuple) else [answer]:
        # A finite sum proves finite entries, and unlike a mask it takes no memory. Float64 keeps a sum of finite
        # float32 entries from overflowing.
        if isinstance(array, np.ndarray) and array.dtype.kind == "f" and not np.isfinite(array.sum(dtype=np.float64)):
            msg = (
                "products with the kernels are not finite, though stored kernels are: a tile was damaged, or entries "
                "are too large for their precision; run `dmkl check`"
            )
            raise DegenerateKernelError(msg)
