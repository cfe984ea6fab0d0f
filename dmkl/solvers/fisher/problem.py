"""Problems of MK-FDA, the interface of a solver, and solvers with their options: `Direct`, `CG`, `Subspace`, `Dual`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from dask.utils import parse_bytes

from dmkl.arrays import Float, check_choice, plain_repr
from dmkl.errors import refuse
from dmkl.numerics.fisher import certify
from dmkl.passes.execute import machine
from dmkl.solvers.fisher.mkfda import Master, Solution
from dmkl.solvers.interface import EachProduct, Outcome, Solver, Status
from dmkl.solvers.jobs import Context, Job
from dmkl.solvers.weight_sets import WeightSet

Finish = Literal["auto", "direct", "cg", "report"]


@dataclass(frozen=True, eq=False)
class FisherProblem:
    """One problem: minimize S(α, β) over α, maximize it over a set of weights β (see `dmkl.numerics.fisher`)."""

    h: Float  # The targets H, (m, c)
    lam: float
    weights: WeightSet
    name: str = ""  # The beginning of messages
    start: Float | None = None  # The initial β, (n,), a member of the set; equal weights where None
    offset: Float | float = 0.0
    """The part of predictions that is not the kernels': a mean, (1,), or that of covariates, (held-out rows, 1)."""


class ConfiguredSolver:
    """A solver with its options: `Direct`, `CG`, `Subspace` or `Dual`."""

    name: ClassVar[str]  # The name of the solver, which stands for it where all options have their defaults

    def options(self) -> dict[str, Any]:
        """The options by the names of the fields of `FisherOptions`."""
        return asdict(self)  # type: ignore[call-overload,no-any-return]


@dataclass(frozen=True)
class _Wrapper(ConfiguredSolver):
    master: Master = "newton"

    def __post_init__(self) -> None:
        check_choice("master", self.master, get_args(Master))


@dataclass(frozen=True)
class Direct(_Wrapper):
    """Wrapper method with the combined kernel in memory, one Cholesky factor for each weight vector.

    Parameters
    ----------
    master
        Rule for the next weights: "newton", or the papers' cutting planes under the Taylor form of the norm ("taylor",
        CVPR Algorithm 1) or the exact norm ("exact").

    Examples
    --------
    >>> import dmkl
    >>> model = dmkl.MKFDA(p=2, solver=dmkl.Direct(master="taylor"))
    """

    name: ClassVar = "direct"


@dataclass(frozen=True)
class CG(_Wrapper):
    """Wrapper method with blocked conjugate gradients, out of core.

    Parameters
    ----------
    master
        As in `Direct`.
    """

    name: ClassVar = "cg"


@dataclass(frozen=True)
class Subspace(ConfiguredSolver):
    """One subspace for all problems, certified problem by problem, out of core.

    Parameters
    ----------
    basis
        Disk space ("8GiB", or a number of bytes) for the basis and its products with the kernels, in the folder for
        temporary files; half of the free space by default.
    finish
        Solver for problems that are still open when the basis has reached its size or `max_iter` passes are done:
        "direct" or "cg" (wrapper method), "auto" for the first of them that fits in memory, "report" for none: these
        problems are returned with the gap that is proven.

    Examples
    --------
    >>> import dmkl
    >>> model = dmkl.MKFDA(p=2, solver=dmkl.Subspace(basis="8GiB", finish="report"))
    """

    basis: int | str | None = None
    finish: Finish = "auto"
    name: ClassVar = "subspace"

    def __post_init__(self) -> None:
        _basis_bytes(self.basis)
        check_choice("finish", self.finish, get_args(Finish))

    def options(self) -> dict[str, Any]:
        """The options by the names of the fields of `FisherOptions`."""
        return {"basis_bytes": _basis_bytes(self.basis), "finish": self.finish}


@dataclass(frozen=True)
class Dual(ConfiguredSolver):
    """Gradient descent on the dual with the weights eliminated, one gradient a pass, out of core; p above 1.

    Parameters
    ----------
    mu
        Penalty μ > 0 on the squared norm of the weights (the Tikhonov form, JMLR Eq. 25), None for weights of norm
        one. The objective is then S(α, β) − λμ‖β‖_p² over all β ≥ 0, and the norm of the weights comes out as
        ‖β‖_p = ‖q‖_p*/(2λμ), where q_j is the gradient of S in β_j and p* = p/(p − 1). With weights divided by their
        norm ρ it is the solution of mu=None and λ/ρ.

    Notes
    -----
    Yan, Kittler, Mikolajczyk, Tahir: Non-sparse multiple kernel Fisher discriminant analysis. JMLR 13 (2012), Section
    2.3.2, Eqs. 25 and 26.

    Examples
    --------
    >>> import dmkl
    >>> model = dmkl.MKFDA(p=2, solver=dmkl.Dual(mu=0.1))
    """

    mu: float | None = None
    name: ClassVar = "dual"

    def __post_init__(self) -> None:
        mu: Any = self.mu
        try:
            valid = mu is None or (not isinstance(mu, str) and 0 < float(mu) < np.inf)
        except (TypeError, ValueError, OverflowError):
            valid = False
        if not valid:
            refuse(f"mu must be positive and finite, or None for weights of norm one, got {plain_repr(mu)}")


CONFIGURABLE: dict[str, type[ConfiguredSolver]] = {kind.name: kind for kind in (Direct, CG, Subspace, Dual)}
"""Solvers that have options, by name."""


def parse_solver(text: str) -> str | ConfiguredSolver:
    """A solver from text such as "direct" or "subspace(basis=8GiB, finish=report)"; InputError for anything else."""
    match = re.fullmatch(r"\s*(\w+)\s*(?:\((.*)\))?\s*", text)
    if match is None or (match[2] is not None and match[1] not in CONFIGURABLE):
        refuse(f"solver must be a name, or {' or '.join(CONFIGURABLE)} with options, as in {_EXAMPLE}; got {text!r}")
    if match[2] is None:
        return match[1]
    kind = CONFIGURABLE[match[1]]
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    options: dict[str, Any] = {}
    for item in filter(None, map(str.strip, match[2].split(","))):
        name, equals, value = (part.strip(" \"'") for part in item.partition("="))
        if name not in names or not equals:
            refuse(f"{match[1]} takes {' and '.join(f'{name}=' for name in names)}, as in {_EXAMPLE}; got {item!r}")
        options[name] = value
        if name == "mu":
            with suppress(ValueError):  # `Dual` refuses a text
                options[name] = float(value)
    return kind(**options)


_EXAMPLE = "'subspace(basis=8GiB, finish=report)'"


def _basis_bytes(value: int | str | None) -> int | None:
    if value is None:
        return None
    try:
        size = int(parse_bytes(value))
    except (ValueError, TypeError, OverflowError, AttributeError) as error:  # of infinity, of a list
        refuse(f"basis must be a size such as '8GiB' or a number of bytes, got {value!r}", error)
    if size <= 0:
        refuse(f"basis must be positive, got {value!r}")
    return size


@dataclass(frozen=True)
class FisherOptions:
    """Options of all solvers together; each solver reads those that concern it (see `Direct`, `Subspace`, `Dual`)."""

    tol: float = 1e-4
    max_iter: int = 200  # Most weight vectors that are tried, or passes
    master: Master = "newton"
    finish: Finish = "auto"
    basis_bytes: int | None = None
    mu: float | None = None
    leave_one_out: bool = False  # Whether leave-one-out scores are wanted, by `Outcome.inverse` and the dual variables
    only_for_fits: bool = False  # Not where held-out rows alone are scored, as in a search by the largest score


SolverName = Literal["auto", "direct", "cg", "anchored", "subspace", "interleaved", "dual", "stacked", "factors"]
"""`AUTO`, and the names in `dmkl.solvers.fisher.registry.SOLVERS`."""
SolverChoice = SolverName | ConfiguredSolver
"""Values of the parameter ``solver``: a name stands for the solver with the defaults of its options."""
AUTO = "auto"  # The value for which `dmkl.solvers.fisher.registry.choose` chooses the solver.

Solve = Callable[[Sequence[Job], FisherOptions, Context], list[Outcome]]


@dataclass(frozen=True)
class FisherSolver:
    """A solver of MK-FDA, available once it is in `dmkl.solvers.fisher.registry.SOLVERS`.

    `name` is the value of the parameter ``solver``, and `title` a line of help. `solve` solves jobs whose problems are
    `FisherProblem`, with options, in a context, and returns the outcomes in order. `check` raises an error, such as
    MemoryBudgetError, for jobs that it cannot solve, before anything is computed. `leaves_out` says that leave-one-out
    scores of its solutions are worth a pass and a factor (`dmkl.solvers.fisher.registry`), which they are not if
    combined kernels do not fit in memory, and `files` that it writes files that all workers must see.
    """

    name: str
    title: str
    solve: Solve
    check: Callable[[Sequence[Job]], None] = lambda jobs: None
    leaves_out: bool = False
    files: bool = False

    @classmethod
    def from_arrays(cls, name: str, title: str, function: Callable[..., tuple[Float, Float]]) -> FisherSolver:
        """Make a solver from a function of arrays.

        The function takes kernels (n, m, m), targets H (m, c), λ and the set of weights (`dmkl.solvers.weight_sets`),
        and returns α (m, c) and β (n,) of the set. The gap of this pair is computed here.
        """

        def solve(jobs: Sequence[Job], options: FisherOptions, context: Context) -> list[Outcome]:
            def solver_of(job: Job) -> Solver[Outcome]:
                problem = job.problem
                # K_jI = K_j: the driver has no request for whole kernels, and one pass gives all of them.
                kernels = yield EachProduct(np.eye(len(problem.h)))
                alpha, beta = function(kernels, problem.h, problem.lam, problem.weights)
                certificate, _ = certify(alpha, kernels @ alpha, beta, problem.h, problem.lam, problem.weights)
                status = Status.CERTIFIED if certificate.gap <= options.tol else Status.STALLED
                return Solution(alpha, beta, certificate, status).outcome()

            # As many problems share a pass as half of the memory has room for their kernels.
            largest = max(8 * job.n_kernels * job.training.n_train**2 for job in jobs)
            return context.drive(jobs, solver_of, at_once=max(1, machine().total_bytes // 2 // largest))

        return cls(name, title, solve)
