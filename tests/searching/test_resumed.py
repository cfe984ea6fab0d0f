"""A search that was interrupted has the result of one that was not; docs/choosing.md lists what differs."""

import json
from unittest import mock

import numpy as np
import pytest
from helpers.interruption import cut_off
from helpers.references import Counting, in_memory, over, psd

import dmkl
from dmkl.errors import InputError

LABELS = np.arange(60) % 3
KERNELS = psd(4, 60) + 20.0 * (LABELS[:, None] == LABELS) * (np.random.default_rng(3).random((4, 60, 60)) < 0.02)
KERNELS = KERNELS + KERNELS.transpose(0, 2, 1)
TIMES = {"round_seconds", "phase_seconds", ".seconds"}
ROUNDS = {"round", "round_kind", "round_bytes", "round_basis", "round_certified", "round_worst_gap", ".n_passes"}
LAM = {"lam": [0.01, 1.0]}
SOLUTIONS = ("weight", "gap", "objective", "held_out_score", "held_out_probability")


def factors():
    tables = {name: np.random.default_rng(k).standard_normal((60, 4)) + LABELS[:, None] for k, name in enumerate("ab")}
    return dmkl.build(None, tables, {"function": "linear"}, storage="factors")


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
        model, grid = dmkl.MKFDA(solver="auto" if solver == "factors" else solver), {"p": [1.0, 1.5], **LAM}
        return dmkl.search(model, K, LABELS, grid, 3, refit=False, baselines="none", state=tmp_path / name).scores

    whole = search("whole")
    with cut_off(after, method=method):
        search("state")
    resumed = search("state")
    assert set(resumed.variables) == set(whole.variables)
    differ = {name for name, of in whole.variables.items() if of.values.tobytes() != resumed[name].values.tobytes()}
    attrs, expected = resumed.attrs, whole.attrs
    differ |= {f".{key}" for key in attrs | expected if attrs.get(key) != expected.get(key)}
    assert differ - TIMES <= (set() if solver == "subspace" else ROUNDS | set(SOLUTIONS))
    for name in SOLUTIONS:
        values, expected = resumed[name].values, whole[name].values
        assert np.max(np.abs(values - expected) / (1 + np.abs(expected))) <= (1e-11 if solver == "direct" else 1e-3)


# --- every file of a result -----------------------------------------------------------------------------------------
QUESTIONS = {
    "search": lambda model, *given, **state: dmkl.search(model, *given, LAM | {"p": [1.0, 1.5]}, 3, **state),
    "evaluate": lambda model, *given, **state: dmkl.evaluate(model, *given, LAM, outer=2, inner=2, **state),
    "permute": lambda model, *given, **state: dmkl.permutation_test(model, *given, LAM, 5, cv=2, **state),
    "stability": lambda model, *given, **state: dmkl.stability(model, *given, 4, **state),
    "importance": lambda model, *given, **state: dmkl.importance(model, *given, LAM, cv=2, **state),
}


def files(folder):
    """The files of a saved result by their paths, without the attribute of seconds and checksums that cover it."""
    contents = {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for path in [path for path in contents if path.name == "zarr.json"]:
        described = json.loads(contents[path])
        described.pop("consolidated_metadata", None)
        for name in ("seconds", "metadata_crc32c"):
            described["attributes"].pop(name, None)
        contents[path] = json.dumps(described, sort_keys=True).encode()
    return contents


@pytest.mark.slow
@pytest.mark.usefixtures("rounds")
@pytest.mark.parametrize("after", [1, 3])
@pytest.mark.parametrize("question", QUESTIONS)
def test_each_file_of_a_resumed_result_is_that_of_an_undisturbed_one(tmp_path, question, after):
    def ask(name):
        given = dmkl.MKFDA(solver="subspace"), dmkl.create(None, KERNELS), LABELS
        return QUESTIONS[question](*given, state=tmp_path / name)

    ask("whole").save(tmp_path / "whole-result")
    with cut_off(after):
        ask("state")
    ask("state").save(tmp_path / "resumed-result")
    resumed, whole = files(tmp_path / "resumed-result"), files(tmp_path / "whole-result")
    assert resumed.keys() == whole.keys()
    differ = {path for path in whole if resumed[path] != whole[path]}
    assert {path.parts[path.parts.index("c") - 1] if "c" in path.parts else str(path) for path in differ} <= TIMES


@pytest.mark.usefixtures("rounds")
@pytest.mark.parametrize(
    ("question", "solver", "other", "differs"),
    [
        ("importance", "subspace", {"choose": "anew"}, "choose"),
        ("stability", "subspace", {"random_state": 1}, "the folds"),
        ("stability", "direct", {"random_state": 1}, "the folds"),
    ],
)
def test_what_was_read_is_not_read_again_and_another_question_is_refused(tmp_path, question, solver, other, differs):
    K, source = over(in_memory(KERNELS, 60), Counting)

    def ask(**options):
        source.reads.clear()
        return QUESTIONS[question](dmkl.MKFDA(p=1.5, solver=solver), K, LABELS, **options).data

    state = {"state": tmp_path / "state"}
    expected, whole = ask(), source.reads.total()
    reads = mock.patch.object(source, "see", side_effect=[*[None] * (whole - 3), KeyboardInterrupt])
    with reads, pytest.raises(KeyboardInterrupt):
        ask(**state)
    resumed, rest = ask(**state), source.reads.total()
    assert 0 < rest < whole / 2
    for name in (name for name in expected if name.startswith(("score", "weight", "objective"))):
        np.testing.assert_allclose(resumed[name], expected[name], atol=1e-5)
    np.testing.assert_allclose(ask(**state)["score"], resumed["score"], rtol=1e-9)
    assert solver == "direct" or not source.reads  # the direct solver has not scored the left-out rows
    with pytest.raises(InputError, match=f"differs in: {differs}"):
        ask(**state, **other)
