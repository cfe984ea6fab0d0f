"""A search that was interrupted has the result of one that was not; docs/choosing.md lists what differs."""

import numpy as np
import pytest
from helpers.interruption import cut_off
from helpers.references import psd

import dmkl

LABELS = np.arange(60) % 3
KERNELS = psd(4, 60) + 20.0 * (LABELS[:, None] == LABELS) * (np.random.default_rng(3).random((4, 60, 60)) < 0.02)
KERNELS = KERNELS + KERNELS.transpose(0, 2, 1)
TIMES = {"round_seconds", "phase_seconds", ".seconds"}
ROUNDS = {"round", "round_kind", "round_bytes", "round_basis", "round_certified", "round_worst_gap", ".n_passes"}
SOLUTIONS = ("weight", "gap", "objective", "held_out_score", "held_out_probability")


def factors():
    tables = {name: np.random.default_rng(k).standard_normal((60, 4)) + LABELS[:, None] for k, name in enumerate("ab")}
    return dmkl.build(None, tables, {"function": "linear"}, storage="factors")


def differing(result, whole):
    """The names of variables and attributes that differ in a bit."""
    a, b = result.scores, whole.scores
    assert set(a.variables) == set(b.variables)
    names = {name for name in a.variables if a[name].values.tobytes() != b[name].values.tobytes()}
    return names | {f".{key}" for key in {**a.attrs, **b.attrs} if a.attrs.get(key) != b.attrs.get(key)}


@pytest.mark.usefixtures("rounds")
@pytest.mark.parametrize(
    ("solver", "method", "after"),
    [
        *(("subspace", "commit", n) for n in range(4)),
        *((solver, "keep_outcome", n) for solver in ("direct", "cg", "factors") for n in (1, 4)),
    ],
)
def test_a_resumed_search_has_the_result_of_an_undisturbed_one(tmp_path, solver, method, after):
    def search(name):
        K = factors() if solver == "factors" else dmkl.create(None, KERNELS)
        model, grid = (
            dmkl.MKFDA(solver="auto" if solver == "factors" else solver),
            {"p": [1.0, 1.5], "lam": [0.01, 1.0]},
        )
        return dmkl.search(model, K, LABELS, grid, 3, refit=False, baselines="none", state=tmp_path / name)

    whole = search("whole")
    with cut_off(after, method=method):
        search("state")
    resumed = search("state")
    differ = differing(resumed, whole) - TIMES
    assert differ <= (set() if solver == "subspace" else ROUNDS | set(SOLUTIONS))
    for name in SOLUTIONS:
        values, expected = resumed.scores[name].values, whole.scores[name].values
        assert np.max(np.abs(values - expected) / (1 + np.abs(expected))) <= (1e-11 if solver == "direct" else 1e-3)
