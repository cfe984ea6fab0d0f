"""Running generators that ask for what they need, in memory."""

from __future__ import annotations

from dmkl.solvers.driver import drive
from dmkl.solvers.interface import Task

__all__ = ["driven", "finish", "on_matrix"]


def finish(generator, answer):
    """Answer every request by a function; what the generator returns."""
    reply = None
    while True:
        try:
            request = generator.send(reply)
        except StopIteration as stop:
            return stop.value
        reply = request.function(*request.arguments) if isinstance(request, Task) else answer(request)


def on_matrix(generator, K):
    """Answer blocks of vectors by their products with a matrix in memory."""
    return finish(generator, K.__matmul__)


def driven(solver):
    """The outcomes of a subspace solver, whose requests the driver answers."""
    return drive([(solver._spaces[0].training.square, solver.run())])[0][0]
