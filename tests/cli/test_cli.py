"""The command line: output, files on disk, errors."""

import json
import re
from unittest.mock import Mock

import numpy as np
import pytest

import dmkl
import dmkl.progress
from dmkl.cli import demo as demo_module

M = 45


# --- as a program -------------------------------------------------------------------------------------------
def test_version(run):
    assert run("--version") == (0, f"dmkl {dmkl.__version__}\n", "")


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["info"],
        ["fit", "x", "y", "--model", "mksvm", "--multiclass", "all"],
        ["build", "x", "y", "--dtype", "int8"],
    ],
    ids=" ".join,
)
def test_a_wrong_command_line_is_status_2(run, arguments):
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert "Usage: dmkl" in err


def test_a_bug_is_told_in_a_line_and_in_full_with_debug(run, error_of, store, monkeypatch):
    monkeypatch.setattr(dmkl, "open", Mock(side_effect=TypeError("cannot add apples")))
    assert error_of("info", store).splitlines() == [
        "dmkl: error: TypeError: cannot add apples. This should not happen; run it again with --debug to see "
        "where it arose"
    ]
    for arguments in (["--debug", "info", store], ["info", store, "--debug"]):
        status, _, err = run(*arguments)
        assert status == 1
        assert "Traceback" in err


# --- import and info ----------------------------------------------------------------------------------------
def test_import_then_info(error_of, json_of, output_of, tmp_path, kernels, classes):
    for name, kernel in zip(("clear", "fair"), kernels[:2], strict=True):
        np.save(tmp_path / f"{name}.npy", kernel)
    (tmp_path / "labels.txt").write_text("\n".join(classes))
    (tmp_path / "samples.txt").write_text("\n".join(f"s{i}" for i in range(M)))
    (tmp_path / "splits.txt").write_text("\n".join("2" if i % 3 == 0 else "0" for i in range(M)))
    out = tmp_path / "set.zarr"
    arguments = ["import", out, tmp_path / "clear.npy", tmp_path / "fair.npy", "--tile", 16, "--dtype", "float32"]
    for option in ("labels", "samples", "splits"):
        arguments += [f"--{option}", tmp_path / f"{option}.txt"]
    assert "2 kernels of 45 × 45, float32" in output_of(*arguments)
    K = dmkl.open(out)
    np.testing.assert_array_equal(np.asarray(K), kernels[:2].astype(np.float32))
    assert K.names == ("clear", "fair")

    output_of(*arguments, "--overwrite", "--names", "one, two")

    text = output_of("info", out)
    for part in ("2 of 45 × 45, float32, symmetric", "apple (15)", "0: 30 train, 15 test", "one", "sha256:"):
        assert part in text
    printed = json_of("info", out)
    assert [kernel["name"] for kernel in printed["kernels"]] == ["one", "two"]
    assert "clear.npy" in json.dumps(printed["kernels"][0]["made_by"])
    assert printed["labels"] == {"apple": 15, "pear": 15, "plum": 15}
    assert printed["splits"] == [{"train": 30, "validation": 0, "test": 15}]
    assert printed["content_id"] == dmkl.open(out).content_id


def test_info_says_what_labels_are(json_of, output_of, tmp_path, kernels):
    numbers = np.linspace(-1.5, 40.25, M)
    some = np.where(np.arange(M) % 9, np.stack([numbers, numbers**2]), np.nan).T
    binary = np.stack([np.arange(M) % 2, np.arange(M) % 3 == 0], axis=1).astype(int)
    for labels, kind, shown in (
        (numbers, "target", "target        45 numbers from -1.5 to 40.25"),
        (some, "targets", "targets (known values)  2: mass (40), size (40)"),
        (binary, "tasks", "tasks (positive samples)  2: mass (22), size (15)"),
    ):
        dmkl.create(tmp_path / kind, kernels[:1], labels=labels, tasks=None if kind == "target" else ["mass", "size"])
        text = output_of("info", tmp_path / kind)
        assert shown.split() == next(line.split() for line in text.splitlines() if line.startswith(kind))
        assert json_of("info", tmp_path / kind)["labels_are"] == kind


@pytest.mark.filterwarnings("default")
def test_import_of_rectangular_kernels_and_repair(notes_of, output_of, tmp_path, kernels):
    np.save(tmp_path / "cross.npy", kernels[:, 30:, :30])
    output_of("import", tmp_path / "cross.zarr", tmp_path / "cross.npy", "--kernel-axis", 0)
    assert "new samples × training samples" in output_of("info", tmp_path / "cross.zarr")

    np.save(tmp_path / "bad.npy", kernels[0] - 0.5 * np.eye(M))
    output_of("import", tmp_path / "clipped.zarr", tmp_path / "bad.npy", "--repair", "clip")
    assert "clip" in output_of("info", tmp_path / "clipped.zarr")
    err = notes_of("import", tmp_path / "bad.zarr", tmp_path / "bad.npy")
    (warning,) = filter(None, err.splitlines())  # one plain line
    assert warning.startswith("dmkl: warning: kernel 'bad' is not positive semidefinite")


# --- check --------------------------------------------------------------------------------------------------
def test_check_of_a_sound_set(run, error_of, json_of, store):
    status, out, err = run("check", store)
    assert (status, err) == (0, "")
    assert "4 kernels checked: 0 errors, 0 warnings, 0 notes." in out
    report = json_of("check", store, "--kernels", "fair, noise")
    assert [kernel["name"] for kernel in report["kernels"]] == ["fair", "noise"]
    assert report["kernels"][0]["trace"] == pytest.approx(M)
    assert report["findings"] == []
    assert "no kernel named 'unclear'" in error_of("check", store, "--kernels", "clear,unclear")


def test_the_status_of_check_tells_warnings_from_errors(run, output_of, tmp_path, kernels):
    path = tmp_path / "set.zarr"
    dmkl.create(path, {"a": kernels[0], "b": 2 * kernels[0], "[c]": kernels[1]}, tile=16)
    out = output_of("check", path)
    assert "2 times kernel 'a'" in " ".join(out.split())
    assert "3 kernels checked: 0 errors, 1 warning, 0 notes." in out
    assert run("check", path, "--strict")[0] == 1
    file = path / "gram_upper" / "c" / "2" / "0" / "1"
    file.write_bytes(file.read_bytes()[:-8] + b"damaged!")
    status, out, _ = run("check", path)
    assert status == 1
    assert "error [c]" in out
    assert "1 of 6 damaged" in out
    status, out, _ = run("check", path, "--json")
    assert status == 1
    assert json.loads(out)["findings"][0]["kernel"] == "[c]"
    assert json.loads(out)["kernels"][2]["trace"] is None


# --- the demo -----------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_the_demo_twice(output_of, tmp_path, monkeypatch):
    """Runs on every twelfth digit, for speed."""

    def fewer(whole=demo_module.digits):
        views, labels, _ = whole()
        keep = np.arange(0, len(labels), 12)
        split = np.where(np.arange(len(keep)) % 2, 2, 0)
        return {name: (features[keep], how) for name, (features, how) in views.items()}, labels[keep], split

    monkeypatch.setattr(demo_module, "digits", fewer)
    (tmp_path / "mine.txt").write_text("keep")
    for _ in range(2):
        out = output_of("demo", "--output", tmp_path)
    assert "single best" in out
    assert (tmp_path / "weights.png").exists()
    assert (tmp_path / "mine.txt").read_text() == "keep"
    assert dmkl.load(tmp_path / "model").gap_ <= 1e-4
    output_of("check", tmp_path / "digits.zarr")


# --- logs and completion ------------------------------------------------------------------------------------------
def test_a_log_has_the_command_its_passes_and_phases_and_how_it_ended(run, store, tmp_path):
    status, _, err = run("--log", tmp_path / "run.log", "fit", store, tmp_path / "model", "--split", "0")
    assert (status, err) == (0, "")
    lines = (tmp_path / "run.log").read_text(encoding="utf-8").splitlines()
    messages = [line.split(" ", 3)[3] for line in lines]
    assert messages[0].startswith(f"dmkl {dmkl.__version__}: dmkl fit ")
    assert "--log" not in messages[0]
    assert any(re.match(r"combine-pass-\d+ begins, [0-9.e+]+ MiB of kernels", line) for line in messages)
    assert any(re.fullmatch(r"combine-pass-\d+ took \S+ s \(passes\)", line) for line in messages)
    assert any("error ≤" in line for line in lines if " INFO " in line)
    assert messages[-1] == "ended with status 0"


def test_a_log_is_appended_to_and_has_the_error(error_of, caplog, tmp_path):
    (tmp_path / "run.log").write_text("before\n")
    err = error_of("info", tmp_path / "nothing", f"--log={tmp_path / 'run.log'}")
    first, *_, error, last = (tmp_path / "run.log").read_text(encoding="utf-8").splitlines()
    assert first == "before"
    assert " ERROR " in error
    assert error.split(" ERROR ")[1] in err.replace("dmkl: error: ", "")
    assert last.endswith("ended with status 1")
    assert caplog.text == ""  # other libraries' logging prints no message again
    assert not dmkl.progress.LOGGER.isEnabledFor(10)  # the logger is as it was
    assert dmkl.progress.LOGGER.propagate


@pytest.mark.parametrize(
    ("line", "completed"),
    [("dmkl sea", {"search"}), ("dmkl fit --model gs", {"gsmkl"}), ("dmkl fit --model gsmkl --n-gr", {"--n-groups"})],
)
def test_a_shell_completes_commands_options_and_those_of_a_learner(output_of, monkeypatch, line, completed):
    monkeypatch.setenv("_DMKL_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split()) - 1))
    assert set(output_of().split()) == completed
