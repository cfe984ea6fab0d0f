"""Groups of kernels, prices and constraints, against the whole problem by cvxpy."""

import cvxpy as cp
import numpy as np
import pytest
from helpers.optima import STEPS, few_digits
from helpers.references import dense_view, in_memory

import dmkl
from dmkl.errors import InputError
from dmkl.numerics.fisher import encode_targets

M, LAM = 18, 1e-2
NAMES = [f"kernel_{j}" for j in range(5)]
GROUPS = {"pixels": "kernel_[01]", "others": NAMES[2:4]}
SIGMA = {"kernel_0": 2.0, "kernel_3": 0.5}
PRICES, ALL, PAIRS = [2, 1, 1, 0.5, 1], [0, 1, 2, 3, 4], [[0, 1], [2, 3], [4]]


def data():
    kernels, y = few_digits()
    return in_memory(kernels[:, :M, :M], 10), y[:M] % 3


def mixed(d, p, groups, sigma=(1, 1, 1, 1, 1)):
    return [sum(cp.norm(cp.multiply([sigma[j] for j in g], d[g]), p) for g in groups) <= 1]


def best(constraints):
    """max over β of min over α of S: the maximum of −½ tr(HᵀA⁻¹H), A = ½(I + K(β)/λ), over the set."""
    _, y = data()
    kernels = dense_view(few_digits()[0][:, :M, :M], steps=STEPS)
    (h,) = encode_targets(y, M).problems
    d = cp.Variable(5, nonneg=True)
    system = 0.5 * (np.eye(M) + sum(d[j] * (kernels[j] / LAM) for j in range(5)))
    total = sum(cp.matrix_frac(column, (system + system.T) / 2) for column in h.T)
    problem = cp.Problem(cp.Minimize(0.5 * total), constraints(d))
    problem.solve(solver=cp.CLARABEL)
    return -problem.value


def known(d):
    return [d["kernel_0"] >= 2 * d["kernel_1"], cp.sum(d) <= 3, cp.norm(d[["kernel_2", "kernel_3"]]) <= 0.5]


def order(d):
    return d["kernel_2"] >= d["kernel_0"] + 0.1


CASES = {
    "groups, p = 1.5": ({"p": 1.5, "kernel_groups": GROUPS}, lambda d: mixed(d, 1.5, PAIRS)),
    "one group": ({"p": 1.5, "kernel_groups": {"all": "*"}}, lambda d: mixed(d, 1.5, [ALL])),
    "groups of one": ({"p": 1.5, "kernel_groups": NAMES}, lambda d: mixed(d, 1, [ALL])),
    "groups, p = 2": ({"kernel_groups": list("aabbb")}, lambda d: mixed(d, 2, [[0, 1], [2, 3, 4]])),
    "groups, p = inf": ({"p": np.inf, "kernel_groups": GROUPS}, lambda d: mixed(d, "inf", PAIRS)),
    "prices": ({"p": 4 / 3, "sigma": PRICES}, lambda d: mixed(d, 4 / 3, [ALL], PRICES)),
    "both": ({"p": 3, "sigma": SIGMA, "kernel_groups": GROUPS}, lambda d: mixed(d, 3, PAIRS, PRICES)),
    "constraints": ({"constraints": known}, lambda d: [d[0] >= 2 * d[1], cp.sum(d) <= 3, cp.norm(d[2:4]) <= 0.5]),
    "constraints within the norm": (
        {"p": 1.5, "constraints": order},
        lambda d: [d[2] >= d[0] + 0.1, *mixed(d, 1.5, [ALL])],
    ),
    "constraints within a mixed norm": (
        {"p": 2, "constraints": order, "kernel_groups": GROUPS, "sigma": SIGMA},
        lambda d: [d[2] >= d[0] + 0.1, *mixed(d, 2, PAIRS, PRICES)],
    ),
}


SOLVERS = {"cg": "constraints", "subspace": "both", "interleaved": "constraints", "anchored": "both"}


@pytest.mark.parametrize(("solver", "name"), [*(("direct", name) for name in CASES), *SOLVERS.items()])
def test_agrees_with_the_whole_problem_and_proves_it(solver, name):
    given, constraints = CASES[name]
    chosen = dmkl.Subspace(finish="report") if solver == "subspace" else solver
    model = dmkl.MKFDA(lam=LAM, solver=chosen, tol=1e-6, **given).fit(*data())
    optimum = best(constraints)
    assert model.gap_ <= 1e-6
    assert model.objective_ == pytest.approx(optimum, rel=1e-5)
    # The bound is valid: the optimum is not above it.
    assert optimum <= model.objective_ + model.gap_ * abs(model.objective_) + 1e-7 * abs(optimum)
    d = cp.Variable(5)
    d.value = model.weights_.values
    assert all(constraint.violation().max() <= 1e-7 for constraint in constraints(d))


REFUSED = {
    "contradict each other: 2.0 <= d\\['kernel_0'\\]; Sum": {
        "constraints": lambda d: [d["kernel_1"] <= 9, d["kernel_0"] >= 2, cp.sum(d) <= 1]
    },
    "which this set does not have": {"constraints": lambda d: d["rna"] >= 2},
    "without weight": {"constraints": lambda d: cp.sum(d) <= 0},
    "the text that a saved model keeps": {"constraints": "<function>"},
    "which constraints that bound all weights replace": {"constraints": known, "sigma": 2.0},
    "2 prices": {"sigma": [1.0, 2.0]},
    "constraints must be a function of the weights": {"constraints": 2.0},
    "or name the group of each of the 5 kernels": {"kernel_groups": ["a", "b"]},
    "sigma has a price for kernel 'rna'": {"sigma": {"rna": 1.0}},
    "no kernel is in the group 'a'": {"kernel_groups": {"a": "rna_*"}},
    "in the groups 'a' and 'b'": {"kernel_groups": {"a": "*_0", "b": NAMES[:1]}},
    "solver='dual' follows": {"kernel_groups": GROUPS, "solver": "dual"},
    "master='taylor' is": {"constraints": known, "solver": dmkl.Direct(master="taylor")},
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_is_refused_before_a_pass(message, monkeypatch):
    monkeypatch.setattr("dmkl.learners.engine.drive", None)
    monkeypatch.setattr("dmkl.learners.engine._training_sets", None)
    with pytest.raises(InputError, match=message):
        dmkl.MKFDA(lam=LAM, **REFUSED[message]).fit(*data())


def test_a_saved_model_predicts_and_keeps_the_text(tmp_path):
    K, y = data()
    model = dmkl.MKFDA(lam=LAM, constraints=known).fit(K, y)
    model.save(tmp_path / "model")
    loaded = dmkl.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(K), model.predict(K))
    assert "known" in loaded.constraints
    with pytest.raises(InputError, match="give the function again"):
        loaded.fit(K, y)


def test_what_tells_constraints_apart_is_the_same_everywhere():
    def texts(**given):
        return dmkl.MKFDA(**given)._parameter_texts(NAMES)["constraints"]

    first, again = (texts(constraints=lambda d: [d["kernel_0"] >= 2 * d["kernel_1"]]) for _ in range(2))
    assert first == again != texts(constraints=lambda d: [d["kernel_0"] >= 3 * d["kernel_1"]])
    assert texts() == "None"


def test_gmkl_takes_linear_constraints_by_name():
    K, y = data()
    A, b = [[1, -2, 0, 0, 0], [0, 0, 1, 0, -1], [0, 0, -1, 0, 1]], [0, 0.1, -0.1]

    def known(d):
        return [d["kernel_0"] >= 2 * d["kernel_1"], d["kernel_2"] == d["kernel_4"] + 0.1]

    named, plain = (dmkl.GMKL(C=1.0, sigma=0.5, **g).fit(K, y > 0) for g in ({"constraints": known}, {"A": A, "b": b}))
    assert named.gap_ <= 1e-3
    assert named.objective_ == pytest.approx(plain.objective_, rel=1e-3)
    d = named.weights_.values
    assert d[2] == pytest.approx(d[4] + 0.1, abs=1e-6)
