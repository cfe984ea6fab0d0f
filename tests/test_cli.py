"""The command line: what it prints, what it leaves on disk, how it fails."""

from __future__ import annotations

import csv
import json

import numpy as np
import psutil
import pytest

import dmkl
from dmkl.cli import cluster as cluster_module
from dmkl.cli import demo as demo_module
from dmkl.cli import stores as stores_module
from dmkl.cli.cluster import computing_on
from dmkl.cli.digits import Digits
from dmkl.cli.main import main
from dmkl.cli.models import parse_p
from dmkl.cli.output import bar, size
from dmkl.errors import InputError, NoWorkersError
from dmkl.store.writer import StoreWriter

M = 45


@pytest.fixture
def run(capsys):
    """Run a command; its exit status, standard output and standard error."""

    def call(*arguments):
        capsys.readouterr()
        status = main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return status, out, err

    return call


@pytest.fixture(scope="module")
def classes():
    return np.array(["apple", "pear", "plum"])[np.arange(M) % 3]


@pytest.fixture(scope="module")
def dense(classes):
    """Three kernels that know the classes, more or less, and one of noise."""
    rng = np.random.default_rng(0)
    centers = rng.standard_normal((3, 4)) * 2
    kernels = []
    for noise in (0.5, 1.0, 2.0, 50.0):
        features = centers[np.arange(M) % 3] + noise * rng.standard_normal((M, 4))
        distances = ((features[:, None] - features[None]) ** 2).sum(axis=2)
        kernels.append(np.exp(-distances / np.median(distances)))
    return np.array(kernels)


@pytest.fixture(scope="module")
def store(tmp_path_factory, dense, classes):
    split = np.zeros((2, M), dtype=int)
    split[0, 30:40], split[0, 40:] = 2, 1
    split[1, ::4] = 2
    return dmkl.create(
        tmp_path_factory.mktemp("cli") / "set.zarr",
        dense,
        names=["clear", "fair", "poor", "noise"],
        samples=[f"s{i:02}" for i in range(M)],
        labels=classes,
        splits=split,
        tile=16,
    ).view.source.location


@pytest.fixture(scope="module")
def model(tmp_path_factory, store):
    """A model of split 0, made by the command."""
    path = tmp_path_factory.mktemp("cli") / "model"
    assert main(["fit", store, str(path), "--cluster", "threads", "--p", "1", "--split", "0"]) == 0
    return path


# --- as a program -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["demo", "import", "info", "check", "fit", "predict"])
def test_every_command_explains_itself_with_examples(run, command):
    status, out, _ = run(command, "--help")
    assert status == 0
    assert f"dmkl {command} " in out.split("Examples")[1]


def test_version(run):
    assert run("--version") == (0, f"dmkl {dmkl.__version__}\n", "")


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["info"],
        ["check", "x", "--steps", "0"],
        ["fit", "x", "y", "--model", "svm"],
        ["predict", "x", "y", "--part", "rest"],
        ["import", "x", "y", "--repair", "pray"],
    ],
)
def test_a_wrong_command_line_is_status_2(run, arguments):
    status, out, err = run(*arguments)
    assert status == 2
    assert out == ""
    assert "Usage: dmkl" in err


def test_interrupted_is_status_130(run, store, monkeypatch):
    def interrupt(path):
        raise KeyboardInterrupt

    monkeypatch.setattr(stores_module, "open_set", interrupt)
    status, _, err = run("info", store)
    assert status == 130
    assert "Traceback" not in err


def test_a_bug_is_told_in_a_line_and_in_full_with_debug(run, store, monkeypatch):
    def fail(path):
        msg = "cannot add apples"
        raise TypeError(msg)

    monkeypatch.setattr(stores_module, "open_set", fail)
    status, out, err = run("info", store)
    assert (status, out) == (1, "")
    assert err.splitlines() == [
        "dmkl: error: TypeError: cannot add apples. This should not happen; run it again with --debug to see "
        "where it arose"
    ]
    for place in ((0, "--debug"), (2, "--debug")):
        arguments = ["info", store]
        arguments.insert(*place)
        status, _, err = run(*arguments)
        assert status == 1
        assert "Traceback" in err


# --- import and info ----------------------------------------------------------------------------------------


def test_import_then_info(run, tmp_path, dense, classes):
    for name, kernel in zip(("clear", "fair"), dense[:2], strict=True):
        np.save(tmp_path / f"{name}.npy", kernel)
    (tmp_path / "classes.txt").write_text("\n".join(classes))
    (tmp_path / "names.txt").write_text("\n".join(f"s{i}" for i in range(M)))
    (tmp_path / "splits.txt").write_text("\n".join("2" if i % 3 == 0 else "0" for i in range(M)))
    out = tmp_path / "set.zarr"
    arguments = ["import", out, tmp_path / "clear.npy", tmp_path / "fair.npy", "--tile", 16, "--dtype", "float32"]
    for option in ("labels", "samples", "splits"):
        file = {"labels": "classes", "samples": "names", "splits": "splits"}[option]
        arguments += [f"--{option}", tmp_path / f"{file}.txt"]
    status, text, _ = run(*arguments)
    assert status == 0
    assert "2 kernels of 45 × 45, float32" in text
    K = dmkl.open(out)
    np.testing.assert_array_equal(np.asarray(K), dense[:2].astype(np.float32))
    assert K.names == ("clear", "fair")
    assert K.samples[3] == "s3"
    assert K.labels.tolist() == classes.tolist()
    assert K.split(0).test.tolist() == list(range(0, M, 3))

    status, _, err = run(*arguments)
    assert status == 1
    assert "exists already" in err
    assert run(*arguments, "--overwrite", "--names", "one, two")[0] == 0

    status, text, _ = run("info", out)
    assert status == 0
    for part in ("2 of 45 × 45, float32, symmetric", "apple (15)", "0: 30 train, 15 test", "one", "sha256:"):
        assert part in text
    status, text, _ = run("info", out, "--json")
    found = json.loads(text)
    assert [kernel["name"] for kernel in found["kernels"]] == ["one", "two"]
    assert "clear.npy" in json.dumps(found["kernels"][0]["made_by"])
    assert found["shape"] == [2, M, M]
    assert found["labels"] == {"apple": 15, "pear": 15, "plum": 15}
    assert found["splits"] == [{"train": 30, "validation": 0, "test": 15}]
    assert found["content_id"] == dmkl.open(out).content_id
    assert found["bytes_on_disk"] > found["bytes_per_pass"]


def test_import_of_rectangular_kernels_and_repair(run, tmp_path, dense):
    np.save(tmp_path / "cross.npy", dense[:, 30:, :30])
    assert run("import", tmp_path / "cross.zarr", tmp_path / "cross.npy", "--kernel-axis", 0)[0] == 0
    status, text, _ = run("info", tmp_path / "cross.zarr")
    assert "new samples × training samples" in text
    assert "classes" in text

    np.save(tmp_path / "square.npy", dense[:1, 15:30, :15])
    assert run("import", tmp_path / "square.zarr", tmp_path / "square.npy", "--rectangular")[0] == 0
    assert not dmkl.open(tmp_path / "square.zarr").is_square

    np.save(tmp_path / "bad.npy", dense[0] - 0.5 * np.eye(M))
    assert run("import", tmp_path / "bad.zarr", tmp_path / "bad.npy", "--repair", "clip")[0] == 0
    assert np.linalg.eigvalsh(np.asarray(dmkl.open(tmp_path / "bad.zarr"))[0])[0] > -1e-12
    assert "clip" in run("info", tmp_path / "bad.zarr")[1]


@pytest.mark.filterwarnings("default")
def test_a_warning_is_one_plain_line(run, tmp_path, dense):
    np.save(tmp_path / "bad.npy", dense[0] - 0.5 * np.eye(M))
    status, _, err = run("import", tmp_path / "bad.zarr", tmp_path / "bad.npy")
    assert status == 0
    lines = [line for line in err.splitlines() if line]
    assert len(lines) == 1
    assert lines[0].startswith("dmkl: warning: kernel 'bad' is not positive semidefinite")


def test_bad_input_to_import_leaves_nothing(run, tmp_path, dense):
    broken = dense[0].copy()
    broken[2, 7] = np.nan
    np.save(tmp_path / "broken.npy", broken)
    np.save(tmp_path / "fine.npy", dense[0])
    (tmp_path / "short.txt").write_text("a\nb\n")
    for arguments, told in (
        ([tmp_path / "broken.npy"], "(2, 7)"),
        ([tmp_path / "nothing.npy"], "nothing.npy"),
        ([tmp_path / "fine.npy", "--labels", tmp_path / "short.txt"], "short.txt"),
        ([tmp_path / "fine.npy", "--names", "a,b"], "names"),
    ):
        status, out, err = run("import", tmp_path / "set.zarr", *arguments)
        assert (status, out) == (1, "")
        assert told in err
        assert err.startswith("dmkl: error: ")
        assert "Traceback" not in err
        assert not (tmp_path / "set.zarr").exists()


def test_info_explains_what_is_no_kernel_set(run, tmp_path, dense, monkeypatch):
    status, out, err = run("info", tmp_path / "nowhere")
    assert (status, out) == (1, "")
    assert "there is no kernel set at" in err

    class KilledError(Exception):
        pass

    def kill(self, j, row_sum, diagonal, ended=StoreWriter.end_kernel):
        ended(self, j, row_sum, diagonal)
        if j == 1:
            raise KilledError

    monkeypatch.setattr(StoreWriter, "end_kernel", kill)
    with pytest.raises(KilledError):
        dmkl.create(tmp_path / "half.zarr", dense, tile=16)
    status, _, err = run("info", tmp_path / "half.zarr")
    assert status == 1
    assert "is not finished" in err
    assert "2 of 4 kernels over 45 samples are whole" in err


# --- check --------------------------------------------------------------------------------------------------


def test_check_of_a_sound_set(run, store):
    status, out, err = run("check", store, "--cluster", "threads")
    assert (status, err) == (0, "")
    assert "4 kernels checked: 0 errors, 0 warnings, 0 notes." in out
    assert "clear" in out
    status, out, _ = run("check", store, "--cluster", "threads", "--json", "--kernels", "fair, noise")
    report = json.loads(out)
    assert [kernel["name"] for kernel in report["kernels"]] == ["fair", "noise"]
    assert report["kernels"][0]["trace"] == pytest.approx(M)
    assert report["findings"] == []


def test_the_status_of_check_tells_warnings_from_errors(run, tmp_path, dense):
    path = tmp_path / "set.zarr"
    dmkl.create(path, {"a": dense[0], "b": 2 * dense[0], "[c]": dense[1]}, tile=16)
    status, out, _ = run("check", path, "--cluster", "threads")
    assert status == 0
    assert "2 times kernel 'a'" in " ".join(out.split())
    assert "3 kernels checked: 0 errors, 1 warning, 0 notes." in out
    assert run("check", path, "--cluster", "threads", "--strict")[0] == 1
    file = path / "gram_upper" / "c" / "2" / "0" / "1"
    file.write_bytes(file.read_bytes()[:-8] + b"damaged!")
    status, out, _ = run("check", path, "--cluster", "threads")
    assert status == 1
    assert "error [c]" in out
    assert "1 of 6 damaged" in out
    status, out, _ = run("check", path, "--cluster", "threads", "--json")
    assert status == 1
    assert json.loads(out)["findings"][0]["kernel"] == "[c]"
    assert json.loads(out)["kernels"][2]["trace"] is None


def test_check_of_a_kernel_that_is_not_there(run, store):
    status, _, err = run("check", store, "--kernels", "clear,unclear")
    assert status == 1
    assert "no kernel named 'unclear'" in err


# --- fit and predict ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1), (" 1.5 ", 1.5), ("4/3", 4 / 3), ("1+2^-6", 1 + 2**-6), ("1 + 2**3", 9), ("inf", np.inf), ("∞", np.inf)],
)
def test_norms_as_people_write_them(text, value):
    assert parse_p(text) == value


@pytest.mark.parametrize("text", ["", "two", "-1", "0.5", "1/2", "4/0", "1e400", "nan", "1+2^x", "__import__('os')"])
def test_norms_that_are_none(text):
    with pytest.raises(InputError):
        parse_p(text)


def test_fit_prints_what_the_model_holds(run, tmp_path, store, capsys):
    path = tmp_path / "model"
    status, out, _ = run("fit", store, path, "--p", "4/3", "--lam", 1e-2, "--cluster", "threads")
    assert status == 0
    assert "Trained on 30 samples (the training part of split 0)" in out
    found = dmkl.load(path)
    K = dmkl.open(store)
    train = K.split(0).train
    expected = dmkl.MKFDA(4 / 3, 1e-2).fit(K[train, train])
    np.testing.assert_allclose(found.weights_, expected.weights_)
    assert found.gap_ <= 1e-4
    for name, weight in zip(K.names, found.weights_.values, strict=True):
        assert f"{weight:.4f}" in next(line for line in out.splitlines() if line.startswith(name))

    status, out, err = run("fit", store, path, "--cluster", "threads")
    assert (status, out) == (1, "")
    assert "--overwrite" in err
    np.testing.assert_array_equal(dmkl.load(path).weights_, found.weights_)
    status, out, _ = run("fit", store, path, "--cluster", "threads", "--p", "inf", "--all", "--overwrite", "--json")
    result = json.loads(out)
    assert result["training_samples"] == M
    assert result["weights"] == {name: 1.0 for name in K.names}
    assert result["gap"] <= 1e-4
    assert result["parameters"]["p"] == "inf"


@pytest.mark.parametrize("kind", ["uniform", "single-best", "product"])
def test_baselines(run, tmp_path, store, kind):
    path = tmp_path / "model"
    assert run("fit", store, path, "--model", kind, "--cluster", "threads", "--split", 1)[0] == 0
    assert (
        type(dmkl.load(path)).__name__
        == {"uniform": "Uniform", "single-best": "SingleBest", "product": "Product"}[kind]
    )
    status, out, _ = run("predict", path, store, "--cluster", "threads", "--split", 1, "--json")
    K = dmkl.open(store)
    train, _, test = K.split(1)
    assert json.loads(out)["accuracy"] == dmkl.load(path).score(K[test, train])
    assert json.loads(out)["samples"] == len(test)


def test_predict_writes_what_the_model_predicts(run, tmp_path, store, model):
    out = tmp_path / "predictions.csv"
    status, text, _ = run("predict", model, store, "--split", 0, "--out", out, "--cluster", "threads")
    assert status == 0
    K = dmkl.open(store)
    train, validation, test = K.split(0)
    estimator = dmkl.load(model)
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["sample"] for row in rows] == K.samples[test].tolist()
    assert [row["predicted"] for row in rows] == estimator.predict(K[test, train]).tolist()
    scores = [[float(row[f"score {name}"]) for name in estimator.classes_] for row in rows]
    np.testing.assert_allclose(scores, estimator.decision_function(K[test, train]), rtol=1e-6)
    assert f"{100 * estimator.score(K[test, train]):.2f} %" in text

    status, _, err = run("predict", model, store, "--out", out, "--cluster", "threads")
    assert status == 1
    assert "--overwrite" in err
    # Without a split: all that the model was not trained on.
    status, text, _ = run("predict", model, store, "--cluster", "threads", "--json")
    assert json.loads(text)["samples"] == len(validation) + len(test)


def test_predict_on_new_samples_without_labels(run, tmp_path, store, model, dense):
    K = dmkl.open(store)
    train, _, test = K.split(0)
    # Columns in another order, and one more than the model knows: they are found by name.
    columns = np.concatenate([train[::-1], test[:1]])
    dmkl.create(
        tmp_path / "new.zarr",
        dense[:, test][:, :, columns],
        names=K.names,
        train_samples=K.samples[columns],
        samples=[f"new{i}" for i in range(len(test))],
        symmetric=False,
    )
    out = tmp_path / "predictions.csv"
    status, text, _ = run("predict", model, tmp_path / "new.zarr", "--out", out, "--cluster", "threads")
    assert status == 0
    assert "labels are not known" in text
    with out.open(newline="") as file:
        predicted = [row["predicted"] for row in csv.DictReader(file)]
    assert predicted == dmkl.load(model).predict(K[test, train]).tolist()


def test_two_classes_and_several_tasks(run, tmp_path, dense):
    rng = np.random.default_rng(0)
    tasks = np.stack([np.arange(M) % 3 == 0, rng.permutation(np.arange(M)) % 2 == 0], axis=1).astype(int)
    split = np.where(np.arange(M) < 30, 0, 2)
    for name, labels, more in (("two", tasks[:, 0], {}), ("tasks", tasks, {"tasks": ["sweet", "round"]})):
        path = tmp_path / name
        K = dmkl.create(path, dense, labels=labels, splits=split, tile=16, **more)
        assert run("fit", path, tmp_path / f"{name}.model", "--lam", 0.1, "--cluster", "threads")[0] == 0
        csv_file = tmp_path / f"{name}.csv"
        status, text, _ = run(
            "predict",
            tmp_path / f"{name}.model",
            path,
            "--split",
            0,
            "--out",
            csv_file,
            "--json",
            "--cluster",
            "threads",
        )
        assert status == 0
        train, _, test = K.split(0)
        estimator = dmkl.load(tmp_path / f"{name}.model")
        assert json.loads(text)["accuracy"] == estimator.score(K[test, train])
        with csv_file.open(newline="") as file:
            header, *rows = csv.reader(file)
        if name == "two":
            assert header == ["sample", "predicted", "score 1"]
            predicted = [int(row[1]) for row in rows]
        else:
            assert header == ["sample", "predicted sweet", "predicted round", "score sweet", "score round"]
            predicted = [[int(row[1]), int(row[2])] for row in rows]
        np.testing.assert_array_equal(predicted, estimator.predict(K[test, train]))


def test_training_samples_by_name(run, tmp_path, store):
    names = tmp_path / "train.txt"
    names.write_text("\n".join(f"s{i:02}" for i in range(5, 35)))
    arguments = ["fit", store, tmp_path / "model", "--cluster", "threads", "--train", names]
    assert run(*arguments)[0] == 0
    assert dmkl.load(tmp_path / "model").train_samples_.tolist() == [f"s{i:02}" for i in range(5, 35)]
    for text, told in (("s01\ns02\ns01", "'s01' more than once"), ("s01\nx9", "'x9'")):
        names.write_text(text)
        status, _, err = run(*arguments, "--overwrite")
        assert status == 1
        assert told in err


def test_what_fit_and_predict_refuse(run, tmp_path, store, model, dense):
    new = tmp_path / "model"
    dmkl.create(tmp_path / "other.zarr", dense[:, :20, :20], tile=16)
    for arguments, told in (
        (["fit", store, new, "--p", "0.5"], "p must be at least 1"),
        (["fit", store, new, "--lam", "-1", "--cluster", "threads"], "lam must be positive"),
        (["fit", store, new, "--split", "7"], "there is no split 7"),
        (["fit", store, new, "--split", "0", "--all"], "exclude one another"),
        (["fit", tmp_path / "other.zarr", new, "--cluster", "threads"], "fit needs labels"),
        (["predict", store, store], "is not a model"),
        (["predict", tmp_path / "none", store], "there is no model"),
        (["predict", model, tmp_path / "other.zarr"], "'s00'"),
        (["predict", model, model], "not a kernel set"),
        (["predict", model, store, "--split", "1", "--part", "validation"], "is empty"),
    ):
        status, out, err = run(*arguments)
        assert (status, out) == (1, ""), arguments
        assert told in err, arguments
        assert "Traceback" not in err
    assert not new.exists()


# --- where it computes --------------------------------------------------------------------------------------


def test_a_local_cluster_that_this_machine_alone_can_reach(run, tmp_path, store):
    status, out, _ = run("fit", store, tmp_path / "model", "--workers", 2, "--memory", "1GiB", "--p", 1)
    assert status == 0
    with computing_on("local", workers=2, memory="1GiB") as client:
        workers = client.scheduler_info(n_workers=-1)["workers"].values()
        assert [worker["nthreads"] for worker in workers] == [1, 1]
        assert all(2**29 < worker["memory_limit"] < 2**30 for worker in workers)
        budgets = client.run(lambda: __import__("dmkl.settings").settings.memory_budget_bytes())
        assert set(budgets.values()) == {2**30}
        here = psutil.Process()
        listening = [
            connection.laddr.ip
            for process in (here, *here.children(recursive=True))
            for connection in process.net_connections(kind="tcp")
            if connection.status == psutil.CONN_LISTEN
        ]
        assert len(listening) >= 3
        assert set(listening) == {"127.0.0.1"}


def test_a_scheduler_that_is_there(run, tmp_path, store, cluster):
    address = cluster.scheduler_address
    status, out, _ = run("check", store, "--cluster", address)
    assert status == 0
    assert "0 errors" in out
    file = tmp_path / "scheduler.json"
    file.write_text(json.dumps({"address": address}))
    with computing_on(str(file)) as client:
        assert client.scheduler.address == address
    status, _, err = run("check", store, "--cluster", address, "--workers", 3)
    assert status == 1
    assert "--workers is for" in err


def test_places_where_nothing_computes(run, tmp_path, store, monkeypatch):
    monkeypatch.setattr(cluster_module, "_CONNECT_SECONDS", 0.5)
    with pytest.raises(NoWorkersError, match="no scheduler answers at 127.0.0.1:1"), computing_on("127.0.0.1:1"):
        pass
    (tmp_path / "scheduler.json").write_text("{}")
    for where, told in (
        ("127.0.0.1:1", "no scheduler answers"),
        ("lokal", "--cluster takes 'local'"),
        (tmp_path / "scheduler.json", "not one that a scheduler wrote"),
    ):
        status, _, err = run("check", store, "--cluster", where)
        assert status == 1
        assert told in err
    status, _, err = run("check", store, "--memory", "plenty")
    assert status == 1
    assert "dmkl.memory" in err
    assert run("check", store, "--workers", 0)[0] in (1, 2)


def test_threads_are_as_many_as_asked():
    import dask

    from dmkl.passes.execute import machine

    with computing_on("threads", workers=3, memory="1GiB") as client:
        assert client is None
        assert machine().slots == 3
        assert machine().total_bytes == 2**30
    assert dask.config.get("num_workers", None) is None


# --- the demo -----------------------------------------------------------------------------------------------


def test_the_demo_twice(run, tmp_path, monkeypatch):
    """On every eighth digit, for speed."""

    def fewer(whole=demo_module.digits):
        data = whole()
        keep = np.arange(0, len(data.labels), 8)
        views = {name: (features[keep], how) for name, (features, how) in data.views.items()}
        split = np.where(np.arange(len(keep)) % 2, 2, 0)
        return Digits(views, data.labels[keep], split)

    monkeypatch.setattr(demo_module, "digits", fewer)
    (tmp_path / "mine.txt").write_text("keep")
    for _ in range(2):
        status, out, _ = run("demo", "--output", tmp_path, "--cluster", "threads")
        assert status == 0
    for part in ("p = 1", "p = 1.5", "p = ∞", "noise 4", "uniform sum", "single best", "product", "dmkl check"):
        assert part in out
    assert (tmp_path / "weights.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "mine.txt").read_text() == "keep"
    K = dmkl.open(tmp_path / "digits.zarr")
    assert len(K) == 15
    found = dmkl.load(tmp_path / "model")
    assert found.p == 1
    assert found.gap_ <= 1e-4
    assert f"{found.weights_.values[0]:.4f}" in out
    for command in ("info", "check"):
        assert run(command, tmp_path / "digits.zarr")[0] == 0


@pytest.mark.parametrize(
    ("part", "expected"), [(0, ""), (1, "█" * 4), (0.5, "██"), (1 / 32, "▏"), (2, "████"), (-1, "")]
)
def test_bars(part, expected):
    assert bar(part, 4) == expected


@pytest.mark.parametrize(("n", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (2**40 * 5000, "5000 TiB")])
def test_sizes(n, text):
    assert size(n) == text
