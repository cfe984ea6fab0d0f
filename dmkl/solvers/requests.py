"""The requests that a solver may make of the data: plain descriptions, which `driver` answers.

A solver is a generator. It yields a request, receives the answer, and returns its result; it never reads the kernels
itself. So independent problems advance side by side: the driver collects the requests of all solvers and reads the
stored kernels once for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from dmkl.arrays import Float, Index

Result = TypeVar("Result", covariant=True)


class Request:
    """A request of a solver."""


@dataclass(frozen=True, eq=False)
class EachProduct(Request):
    """K_jV for every kernel, in float64; answered by (n, rows, b)."""

    block: Float
    """V, (columns, b)"""
    columns: Index | None = None
    """The samples of the block's rows, if all other rows are zero: only tiles with their columns are read."""


@dataclass(frozen=True, eq=False)
class CombinedProduct(Request):
    """Σ_j K_j V diag(w_j); answered by (rows, b)."""

    block: Float
    """V, (columns, b)"""
    weights: Float
    """w, (n,) for all columns, or (n, b)"""
    exact: bool = False
    """Whether the product is in float64; otherwise it is in the precision of the kernels."""


@dataclass(frozen=True, eq=False)
class Projection(Request):
    """BᵀK_jB for every kernel, in float64; answered by (n, b, b) for a block B (m, b)."""

    block: Float


@dataclass(frozen=True, eq=False)
class CombinedEntries(Request):
    """K(β) over some samples, in float64; answered by (b, b)."""

    weights: Float
    index: Index


@dataclass(frozen=True, eq=False)
class CombinedFactor(Request):
    """A Cholesky factor of ½(I + K(β)/λ); answered by a handle of the factor, for `FactorSolve`."""

    weights: Float
    lam: float


@dataclass(frozen=True, eq=False)
class FactorSolve(Request):
    """A⁻¹B by a factor of A, the answer to `CombinedFactor`; answered by (m, c) for a block B (m, c)."""

    factor: Any
    block: Float


@dataclass(frozen=True, eq=False)
class FactorDiagonal(Request):
    """The diagonal of A⁻¹ by a factor of A; answered by (m,)."""

    factor: Any


@dataclass(frozen=True, eq=False)
class FactorLogDeterminant(Request):
    """log|A| by a factor of A; answered by (1,)."""

    factor: Any


@dataclass(frozen=True, eq=False)
class FactorTraces(Request):
    """tr A⁻¹K_j of every kernel, and tr A⁻¹ last, by a factor of A; answered by (n + 1,)."""

    factor: Any


@dataclass(frozen=True, eq=False)
class InnerProducts(Request):
    """⟨PK_iP, PK_jP⟩ and ⟨PK_iP, P⟩ for P = I − QQᵀ, in float64; answered by (n + 1, n + 1), with P as the last one."""

    basis: Float
    """Q, (m, r), with orthonormal columns"""
    products: Float
    """K_jQ, (n, m, r)"""


@dataclass(frozen=True, eq=False)
class InverseDiagonals(Request):
    """The diagonal of A⁻¹ − 2P, A = ½(I + K(β)/λ), at one or more λ; answered by (λ, m).

    P is the projection onto the vectors that the steps project out of the kernels, on which A⁻¹ = 2I.
    """

    weights: Float
    lams: tuple[float, ...]
    single: bool
    """Whether single precision is enough."""


@dataclass(frozen=True, eq=False)
class SVM(Request):
    """A support vector machine on K(β); answered by a `SVMSolution`."""

    weights: Float
    """β, (n,)"""
    y: Float
    """(m,), 1 and −1"""
    C: float | Float
    """The bound on α, or one for each sample, (m,)"""
    tol: float
    """The relative gap that is requested; the solution may be worse where rounding prevents it."""
    start: Float | None = None
    """The initial u, (m,), for example from other weights"""
    rows: Index | None = None
    """The training samples, to which y and u belong; None for all."""
    ridge: float = 0.0
    """δ: the machine is trained on K(β) + δI"""
    noise: float | None = None
    """How far below zero rounding may bring xᵀK(β)x for unit vectors x, if K(β) is to be tested for indefiniteness;
    None for kernels that are assumed to be positive semidefinite."""


@dataclass(frozen=True, eq=False)
class GroupClassifier(Request):
    """A classifier on the composite kernel Σ_j β_j^{c(i)} β_j^{c(k)} K_j(i, k) of group-sensitive MKL.

    It is answered by a `SVMSolution`, which is regularized least squares if lam is given.
    """

    weights: Float
    """β, (n, G)"""
    groups: Index
    """c, (m,)"""
    y: Float
    """(m,): 1 and −1, or targets"""
    C: float | Float | None
    """The bound on α, or one for each sample, (m,)"""
    tol: float
    """The relative gap that is requested."""
    start: Float | None = None
    lam: float | None = None


@dataclass(frozen=True, eq=False)
class Task(Request):
    """A function of small arguments, run as a Dask task; answered by its result."""

    name: str
    """Prefix of the task's key"""
    function: Callable[..., Any]
    arguments: tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class Tasks(Request):
    """Functions run as tasks side by side (see `dmkl.passes.execute.run_tasks`); answered by the list of results."""

    name: str
    """Prefix of the tasks' keys"""
    work: Sequence[Callable[..., Any]]
    """The functions that the tasks call, the longest first"""
    shared: tuple[Any, ...] = ()
    """Arguments of all tasks, sent to the workers once"""
    own: Sequence[Any] | None = None
    """One more argument for each task, after the shared ones"""
    task_bytes: int = 0
    """Bytes of kernels that each task reads, for the progress report"""


@dataclass(frozen=True, eq=False)
class Pass(Request):
    """A pass over the kernels whose results stay where tasks make them; answered by the function's result.

    The solver counts the pass and chooses what it multiplies.
    """

    name: str
    """The name of the pass in messages"""
    function: Callable[[], Any]
    """Runs the pass; called again if workers are lost"""


Solver = Generator[Request | tuple[Request, ...], Any, Result]
"""Yields a request and receives its answer, or yields a tuple of requests and receives a list of answers."""


def ask(request: Request) -> Solver[Any]:
    """A solver that makes one request and returns the answer."""
    return (yield request)


def run_with(solver: Generator[Any, Any, Result], answer: Callable[[Any], Any]) -> Result:
    """Run a solver to its end with the answers of a function."""
    reply: Any = None
    while True:
        try:
            request = solver.send(reply)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        reply = list(map(answer, request)) if isinstance(request, tuple) else answer(request)
