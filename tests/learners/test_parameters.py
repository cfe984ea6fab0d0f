"""Parameters of learners: numbers in their range, integers for counts, valid words, and solvers with options."""

import inspect
import json

import numpy as np
import pytest

import dmkl
from dmkl.errors import InputError
from dmkl.learners.checks import decode, encode
from dmkl.learners.saving import decode_parameters, models
from dmkl.reports.contents import _call
from dmkl.solvers.fisher.problem import parse_solver

NUMBERS = ("lam", "C", "nu", "tol", "sigma", "spread", "eigengap_weight")
COUNTS = ("max_iter", "restarts", "n_examples", "n_groups", "n_clusters", "n_probes", "random_state", "refine")
WORDS = ("decision", "grouping", "loss", "method", "multiclass", "shares", "sharing", "traces", "weighting")
WRONG = {
    **dict.fromkeys(NUMBERS, (np.inf, np.nan, -1, "much", [[1.0]], 10**400)),
    **dict.fromkeys(COUNTS, (np.inf, np.nan, -1, 1.5, "many", True)),
    **dict.fromkeys(WORDS, ("nothing", 0)),
    "p": (0.5, np.nan, "high", [[1.0]], 10**400),
}
CASES = [(model, name) for model in models().values() for name in inspect.signature(model).parameters if name in WRONG]


@pytest.fixture(scope="module")
def K():
    return dmkl.create(None, [np.eye(8) + 1, np.diag(np.arange(8) + 1.0)], labels=np.arange(8) % 2)


@pytest.mark.parametrize(("model", "name"), CASES)
def test_values_that_break_a_rule(model, name, K):
    for value in WRONG[name]:
        with pytest.raises(InputError, match=rf"\b{name}\b"):
            model(**{name: value}).fit(K)


# --- solvers with options ---------------------------------------------------------------------------------------------
SOLVERS = [
    ("direct(master=taylor)", dmkl.Direct("taylor")),
    ("cg(master='exact')", dmkl.CG(master="exact")),
    ("subspace(basis=8GiB, finish=report)", dmkl.Subspace("8GiB", "report")),
    (" subspace( ) ", dmkl.Subspace()),
    ("dual(mu=0.1)", dmkl.Dual(mu=0.1)),
    ("stacked", "stacked"),
]


@pytest.mark.parametrize(("text", "solver"), SOLVERS)
def test_an_object_is_read_from_text_and_json(text, solver):
    assert parse_solver(text) == solver
    assert decode(json.loads(json.dumps(encode(solver)))) == solver


def test_the_bound_on_disk_space_and_the_penalty_reach_the_solver(K):
    with pytest.warns(dmkl.errors.ConvergenceWarning, match=r"dmkl.Subspace\(basis="):
        model = dmkl.MKFDA(1.5, 1e-6, solver=dmkl.Subspace(basis=4, finish="report"), tol=1e-12).fit(K)
    assert model.gap_ > 1e-12
    assert np.linalg.norm(dmkl.MKFDA(2.0, solver=dmkl.Dual(mu=9.0)).fit(K).weights_) < 0.9


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: dmkl.Direct(master="none"), "master must be 'newton', 'taylor' or 'exact', got 'none'"),
        (lambda: dmkl.Subspace(finish="never"), "finish must be 'auto'"),
        *((lambda basis=basis: dmkl.Subspace(basis), "basis must be") for basis in (np.inf, np.nan, -1, [1], "much")),
        *((lambda mu=mu: dmkl.Dual(mu), "mu must be") for mu in (np.inf, np.nan, -1, "1", [[1.0]], 10**400)),
        (lambda: parse_solver("stacked(mu=1)"), "direct or cg or subspace or dual with options"),
        (lambda: parse_solver("dual(basis=1GiB)"), "dual takes mu=, as in"),
        (lambda: parse_solver("dual(mu=x)"), "mu must be positive"),
        (lambda: dmkl.MKFDA(solver=3)._check_parameters(), "an object such as"),
    ],
)
def test_options_that_break_a_rule(made, message):
    with pytest.raises(InputError, match=message):
        made()


@pytest.mark.parametrize(
    ("written", "solver", "code"),
    [
        ({"solver": "auto", "basis": "1GiB"}, dmkl.Subspace("1GiB"), "dmkl.Subspace(basis='1GiB', finish='auto')"),
        ({"solver": "cg", "master": "exact"}, dmkl.CG("exact"), "dmkl.CG(master='exact')"),
        ({"solver": "auto", "master": "exact"}, dmkl.Direct("exact"), "dmkl.Direct(master='exact')"),
        ({"solver": "dual", "mu": 0.5}, dmkl.Dual(0.5), "dmkl.Dual(mu=0.5)"),
    ],
)
def test_parameters_that_earlier_versions_wrote(written, solver, code):
    earlier = {"p": 1.5, "basis": None, "finish": "auto", "master": "newton", "mu": None} | written
    assert decode_parameters(dmkl.MKFDA, earlier) == {"p": 1.5, "solver": solver}
    assert code in _call(dmkl.MKFDA, earlier)
