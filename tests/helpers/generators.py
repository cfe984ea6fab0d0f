"""A driver of solvers that are generators of requests."""

from dmkl.solvers.driver import drive


def driven(solver):
    """Run a subspace solver, with its requests served by the driver, and return its outcomes."""
    return drive([(solver._spaces[0].training.square, solver.run())])[0][0]
