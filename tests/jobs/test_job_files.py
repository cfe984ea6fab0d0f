"""Job files: commands, errors, copies beside results, and scripts of batch jobs."""

import json
import os
import re
import shlex
import signal
import subprocess
import tomllib
from inspect import signature
from itertools import product

import numpy as np
import pandas as pd
import pytest
from helpers.certificates import make_certificates
from helpers.faults import disturbed

import dmkl
from dmkl.cli.running import UNFINISHED
from dmkl.job_files import as_toml

SEARCH = """
[data]
store = "{store}"

[model]
tol = 1e-3

[grid]
p = [1, 1.5]
lam = [1e-1]

[folds]
cv = 2
split = 1

[cluster]
place = "threads"

[outputs]
search = "found"
"""


@pytest.fixture
def job(tmp_path, store):
    """Write a job file with some text replaced by another."""

    def written(*replaced, text=SEARCH):
        text = text.format(store=store)
        for before, after in replaced:
            assert before in text
            text = text.replace(before, after)
        (tmp_path / "job.toml").write_text(text)
        return tmp_path / "job.toml"

    return written


@pytest.mark.slow
def test_a_search_and_its_record_which_does_the_same_again(run, error_of, notes_of, output_of, job, tmp_path, store):
    assert "Saved in" in output_of("run", job())
    recorded = tomllib.loads((tmp_path / "found.job.toml").read_text())
    assert recorded["data"]["store"] == str(store)
    assert recorded["model"]["solver"] == "auto"
    assert recorded["folds"]["rule"] == "best"
    assert recorded["recorded"]["versions"]["numpy"] == np.__version__
    assert recorded["recorded"]["contents"] == {str(store): f"kernel set {dmkl.open(store).content_id}"}
    assert "warning" not in notes_of("run", tmp_path / "found.job.toml", "--into", tmp_path / "again")
    # The command has the same result.
    options = ["-p", "1,1.5", "--lam", "0.1", "--tol", "1e-3", "--cv", "2", "--split", "1", "--cluster", "threads"]
    assert run("search", store, tmp_path / "other", *options)[0] == 0
    found, *others = (dmkl.load(tmp_path / path).scores for path in ("found", "again/found", "other"))
    for other, name in product(others, ("score", "weight", "gap")):
        np.testing.assert_array_equal(other[name], found[name])
    assert "found is there already" in notes_of("run", tmp_path / "job.toml")
    err = error_of("run", job(("1e-3", "1e-2")))
    assert "job.toml, line 20, outputs.search:" in err
    assert "is of another job" in err


def test_a_log_of_what_was_done_lies_beside_the_result(error_of, output_of, job, tmp_path):
    log = tmp_path / "there" / "found.log"
    err = error_of("run", job(("lam = [1e-1]", "lam = [-1]")), "--into", tmp_path / "there")
    failed = log.read_text(encoding="utf-8")
    end, message = failed.splitlines()[-1].split(" did not finish: ")
    assert end.endswith(" ERROR dmkl search")
    assert message in err
    quick = 'cv = 2\nbaselines = "none"\nrefit = false'
    output_of("run", job(("cv = 2", quick)), "--into", tmp_path / "there")
    added = log.read_text(encoding="utf-8").removeprefix(failed)
    assert " --tol=0.001 --p=1,1.5 --lam=0.1 " in added.splitlines()[0]
    assert " ERROR " not in added


def test_results_at_urls_are_noted_beside_the_job_file(notes_of, job, tmp_path):
    url = f"memory://jobs/{tmp_path.name}/found"
    quick = 'split = 1\nstate = "state"\nbaselines = "none"\nrefit = false'
    written = job(("split = 1", quick), ('search = "found"', f'search = "{url}"'))
    notes_of("run", written)
    assert {"found.job.toml", "job.toml"} <= {entry.name for entry in tmp_path.iterdir()}
    assert not (tmp_path / "found").exists()
    assert f"{url} is there already" in notes_of("run", written)


@pytest.mark.slow
def test_all_from_features_to_predictions(notes_of, tmp_path):
    rng = np.random.default_rng(0)
    labels = np.arange(45) % 3
    np.savez(tmp_path / "x.npz", x=rng.standard_normal((3, 4))[labels] * 3 + rng.standard_normal((45, 4)))
    np.savetxt(tmp_path / "y.txt", labels, fmt="%d")
    (tmp_path / "job.toml").write_text(
        '[data]\nstore = "k.zarr"\nfeatures = "x.npz"\nlabels = "y.txt"\nfunction = "rbf"\nbandwidth = [0.3, 1]\n'
        '[model]\np = 1.5\n[predict]\nfeatures = "x.npz"\n[outputs]\nmodel = "m"\npredictions = "p.csv"\n'
    )
    notes_of("run", tmp_path / "job.toml")
    assert len((tmp_path / "p.csv").read_text().splitlines()) == 46
    recorded = tomllib.loads((tmp_path / "m.job.toml").read_text())["recorded"]["contents"]
    assert recorded[str(tmp_path / "y.txt")].startswith("sha256 ")
    (tmp_path / "y.txt").write_text("changed")
    err = notes_of("run", tmp_path / "m.job.toml", "--into", tmp_path / "again")
    assert f"{tmp_path / 'y.txt'} has other contents" in err


COVARIATES = """
[data]
store = "{store}"

[model]
name = "mkridge"
steps = ["residualize=table.csv:age&more.csv", "trace"]

[folds]
labels = "table.csv:trait"
all = true

[predict]
rows = "rows.txt"
covariates = "table.csv:age&more.csv"
contributions = "shares.csv"
report = "page.html"

[outputs]
model = "m"
predictions = "p.csv"
"""


def test_files_and_their_columns_are_beside_the_job_file(notes_of, job, tmp_path, store):
    rng, K = np.random.default_rng(0), dmkl.open(store)
    table = pd.DataFrame(rng.standard_normal((45, 2)), K.samples, ["age", "trait"])
    more = pd.DataFrame({"dose": rng.standard_normal(45)}, K.samples)
    for name, frame in (("table.csv", table), ("more.csv", more)):
        frame.to_csv(tmp_path / name, index_label="sample")
    (tmp_path / "rows.txt").write_text("s07\ns03\n")
    notes_of("run", job(text=COVARIATES))
    Z = table[["age"]].join(more)
    expected = dmkl.MKRidge(steps=(dmkl.residualize(Z), "trace")).fit(K, table["trait"])
    np.testing.assert_allclose(dmkl.load(tmp_path / "m").weights_, expected.weights_, atol=1e-9)
    recorded = tomllib.loads((tmp_path / "m.job.toml").read_text())["recorded"]["contents"]
    assert str(tmp_path / "table.csv") in recorded
    for name in ("p.csv", "shares.csv"):
        assert pd.read_csv(tmp_path / name)["sample"].tolist() == ["s07", "s03"]
    assert "<html" in (tmp_path / "page.html").read_text()


def test_the_prefix_of_a_relationship_matrix_is_an_input(output_of, error_of, tmp_path):
    (tmp_path / "study.grm.bin").touch()
    (tmp_path / "job.toml").write_text('[data]\nstore = "k.zarr"\ninputs = ["study"]\n[outputs]\nmodel = "m"\n')
    shown = tomllib.loads(output_of("run", tmp_path / "job.toml", "--dry-run"))
    assert shown["data"]["inputs"] == [str(tmp_path / "study")]
    (tmp_path / "study.grm.bin").unlink()
    assert "data.inputs: " in error_of("run", tmp_path / "job.toml", "--dry-run")


SLURM = 'place = "slurm"\nqueue = "short"\ncores = 8\nprocesses = 2\nmemory = "16GiB"\njobs = 3\nwalltime = "04:00:00"'


def test_a_job_is_shown_with_its_defaults_or_as_a_script_and_nothing_is_done(output_of, job, tmp_path):
    more = '\nnotice = "5 m"\njob_script_prologue = ["module load python"]\njob_extra_directives = ["--exclusive"]'
    file = job(('place = "threads"', SLURM + more))
    shown = tomllib.loads(output_of("run", file, "--dry-run"))
    assert (shown["folds"]["rule"], shown["model"]["max_iter"]) == ("best", 200)
    out = output_of("submit", file, "--dry-run")
    for line in ("partition=short", "nodes=3", "cpus-per-task=8", "mem=16384M", "time=04:00:00", "signal=B:USR1@300"):
        assert f"#SBATCH --{line}\n" in out
    assert "#SBATCH --exclusive\nmodule load python\n" in out
    assert "--nworkers 2 --nthreads 4 --memory-limit 8589934592" in out
    assert re.search(r"^srun .*--cpus-per-task=8 ", out, re.MULTILINE)  # SLURM 22.05 does not inherit it
    assert subprocess.run(["bash", "-n"], input=out, text=True, check=False).returncode == 0
    assert [path.name for path in tmp_path.iterdir()] == ["job.toml"]


def test_a_job_in_the_queue_is_not_changed_by_editing_its_file(output_of, job, tmp_path, monkeypatch):
    programs, sent = tmp_path / "bin", tmp_path / "sent"
    programs.mkdir()
    (programs / "sbatch").write_text(f'#!/bin/sh\ncp "$2" {sent}\necho 7\n')
    (programs / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=os.pathsep)
    file = job(('place = "threads"', SLURM))
    content = file.read_text()
    assert "Sent as job 7" in output_of("submit", file)
    (copy,) = re.findall(r"-m dmkl run \S*?([^/\s]+)\s", sent.read_text())
    file.write_text(content.replace("p = [1, 1.5]", "p = [2]"))
    output_of("submit", file)
    assert (tmp_path / copy).read_text() == content
    before = set(tmp_path.iterdir())
    output_of("submit", file)  # an identical submission adds no files
    assert set(tmp_path.iterdir()) == before


def test_paths_of_certificates_are_words_and_no_commands(output_of, job, tmp_path):
    files = make_certificates(tmp_path / "my $(touch bad) 'keys'")
    tls = "".join(f"\n{name} = {json.dumps(path)}" for name, path in files.items())
    out = output_of("submit", job(('place = "threads"', SLURM + tls)), "--dry-run")
    place = re.search(r"--cluster (.*) &$", out, re.MULTILINE)[1]
    printing = f"folder='/a folder'; printf %s {place}"
    words = subprocess.run(["bash", "-c", printing], capture_output=True, text=True, check=True, cwd=tmp_path).stdout
    assert shlex.split(words) == ["/a folder/scheduler.json", *(f"{name}={path}" for name, path in files.items())]
    assert f"--tls-key {shlex.quote(files['tls_key'])} " in out
    assert not (tmp_path / "bad").exists()


@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        (SLURM.replace("short", "short\\ntouch bad"), "line 18: queue must be one line of printable characters, got"),
        (SLURM + '\njob_extra_directives = ["--x\\nbad"]', "line 24: job_extra_directives must be one line of"),
        (SLURM.replace("cores = 8\n", ""), "cluster: needs cores, of one node"),
        (SLURM.replace("= 2", "= 9"), "line 20, cluster.processes: must be at most the number of cores, 8, got 9"),
        (SLURM + '\nnotice = "soon"', "line 24, cluster.notice: must be a time from 1 s to 18 h"),
        ('place = "pbs"', "dmkl submit writes scripts of SLURM only, got 'pbs'; say place = \"slurm\""),
        (SLURM, "sbatch is not on this machine"),
    ],
)
def test_a_job_that_cannot_be_submitted(error_of, job, monkeypatch, tmp_path, cluster, message):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert message in error_of("submit", job(('place = "threads"', cluster)))


def test_options_of_the_cluster_keep_their_types(error_of, job, monkeypatch):
    received = {}

    def jobs(where, workers, memory, options):
        received.update(where=where, workers=workers, memory=memory, **options)
        raise dmkl.errors.NoWorkersError("no jobs here")

    monkeypatch.setattr("dmkl.clusters.backends._jobs", jobs)
    table = SLURM + '\nworkers = 4\njob_extra_directives = []\npython = "my python"\naccount = "a=b \'c"'
    assert "no jobs here" in error_of("run", job(('place = "threads"', table)))
    assert (received["where"], received["workers"], received["memory"]) == ("slurm", 4, "16GiB")
    assert (received["cores"], received["job_extra_directives"]) == (8, [])
    assert (received["python"], received["account"]) == ("my python", "a=b 'c")


@pytest.mark.slow
def test_sigterm_keeps_what_is_done(run, job):
    file = job(("tol = 1e-3", 'tol = 1e-3\nsolver = "subspace"'))
    for n_tasks, ended, words in (
        (1, 1, ["ended before it had done anything"]),
        (12, UNFINISHED, ["the same command continues after pass", "the same command may be run again"]),
        (10**6, 0, ["going on after pass"]),
    ):
        with disturbed(lambda: os.kill(os.getpid(), signal.SIGTERM), after=n_tasks):
            status, _, err = run("run", file)
        assert status == ended, err
        assert all(word in err for word in words)


# --- questions about a learner ---------------------------------------------------------------------------------------
QUESTIONS = """
[data]
store = "{store}"

[model]
tol = 1e-3
kernels = ["clear", "noise", "fair"]
lam = 0.1

[grid]
p = [2]

[folds]
cv = 2
scoring = "balanced_accuracy"
all = true

[importance]
kernel-group = ["good=clear,fair"]
cv = 3

[stability]
resamples = 4
selected = 1
scoring = "accuracy"

[permute]
n_permutations = 2
seed = 1

[cluster]
place = "threads"

[outputs]
importance = "added"
stability = "trust"
permute = "significance"
"""


def test_the_records_of_questions_do_the_same_again(run, job, output_of, tmp_path):
    file = job(text=QUESTIONS)
    output_of("run", file)
    recorded = tomllib.loads((tmp_path / "trust.job.toml").read_text())
    assert (recorded["stability"]["how"], recorded["stability"]["scoring"]) == ("half", ["accuracy"])
    assert (recorded["importance"]["cv"], recorded["folds"]["cv"]) == ("3", "2")
    assert (recorded["permute"]["choose"], recorded["permute"]["n_permutations"]) == ("anew", 2)
    status, out, err = run("run", file)
    assert (status, out) == (0, "")
    assert err.count("is there already") == 3
    output_of("run", tmp_path / "trust.job.toml", "--dry-run")


VALUES = {
    **{"cv": 3, "outer": 3, "inner": 2, "scoring": "accuracy", "unknown": "-9", "refit": False, "baselines": "none"},
    **{"rule": "one_standard_error", "choice": "joint", "state": "state", "random_state": 2, "choose": "anew"},
    **{"n_permutations": 3, "exchange": "groups", "n_resamples": 4, "how": "folds", "n_selected": 1, "threshold": 0.8},
    **{"shapley": 3, "groups": "groups.txt", "blocks": "groups.txt", "kernel_groups": {"good": ["clear", "fair"]}},
}
"""Of keyword arguments of the functions of a job; labels are in the set, and parameters in [model] and [grid]."""


@pytest.mark.parametrize(
    ("question", "output", "table"),
    [
        *((dmkl.search, "search", "folds"), (dmkl.evaluate, "evaluation", "folds")),
        *(
            (function, name, name)
            for function, name in ((dmkl.importance, "importance"), (dmkl.stability, "stability"))
        ),
        (dmkl.permutation_test, "permute", "permute"),
    ],
)
def test_keyword_arguments_are_keys(output_of, store, tmp_path, question, output, table):
    np.savetxt(tmp_path / "groups.txt", np.arange(45) // 3, fmt="%d")
    names = signature(question).parameters.keys() - {"estimator", "K", "y", "grid"}
    given = {name: VALUES[name] for name in names}
    sections = {"data": {"store": store}, table: given, "outputs": {output: "result"}}
    (tmp_path / "job.toml").write_text(as_toml(sections, {}, "All of them."))
    shown = tomllib.loads(output_of("run", tmp_path / "job.toml", "--dry-run"))[table]
    read = {"scoring": ["accuracy"], "rule": "one-standard-error", "kernel_groups": ["good=clear,fair"]}
    read |= {name: str(VALUES[name]) for name in ("cv", "outer", "inner")}
    read |= {name: str(tmp_path / str(VALUES[name])) for name in ("state", "groups", "blocks")}
    assert {name: shown[name] for name in names} == given | {name: read[name] for name in names & read.keys()}


WRONG_SEARCHES = [
    ("tol =", "tolerance =", "job.toml, line 6, model.tolerance: no such key (did you mean tol?)"),
    ("[grid]", "[gird]", "job.toml, line 8, gird: no such table (did you mean grid?)"),
    ("tol = 1e-3", 'tol = "small"', "line 6, model.tol: "),
    ("cv = 2", 'cv = "KFlod(3)"', "line 13, folds.cv: "),
    ("cv = 2", "cv = true", "line 13, folds.cv: takes a value, got true"),
    ("p = [1, 1.5]", "p = [0.5]", "line 9, grid.p: "),
    ("[cluster]", "[predict]\nsplit = 0\n[cluster]", "line 16, predict: nothing that this job asks for takes"),
    ('place = "threads"', 'place = "threads"\njobs = 4', "line 18, cluster.jobs: no such key"),
    ('place = "threads"', 'place = "threads"\nworkers = "few"', "line 18, cluster.workers: workers must be at least 1"),
    ('place = "threads"', 'place = "tcp://host:1"\nqueue = "a"', "line 18, cluster.queue: no such key"),
    ('search = "found"', "", "job.toml asks for nothing"),
    ('[outputs]\nsearch = "found"', "[outputs", "job.toml is not valid TOML"),
]
WRONG_QUESTIONS = [
    ("resamples = 4", 'resamples = "few"', "line 23, stability.resamples: "),
    ("resamples = 4", 'n_resamples = "few"', "line 23, stability.n_resamples: "),
    ("seed = 1", "seed = 1\nrandom-state = 2", "line 30, permute.random_state: says the same as seed; leave one of"),
    ('"trust"', '"added"', "line 36, outputs.stability: "),
    ('"noise"', '"nois"', "line 7, model.kernels: there is no kernel named 'nois'"),
    ('stability = "trust"\n', "", "line 22, stability: nothing that this job asks for takes [stability]"),
]


@pytest.mark.parametrize(
    ("text", "before", "after", "message"),
    [*((SEARCH, *case) for case in WRONG_SEARCHES), *((QUESTIONS, *case) for case in WRONG_QUESTIONS)],
)
def test_what_is_wrong_is_told_with_its_line(error_of, job, tmp_path, text, before, after, message):
    for command in ("run", "submit") if text is SEARCH and "cluster" not in message else ("run",):
        err = error_of(command, job((before, after), text=text))
        assert message in err
        assert text is QUESTIONS or len(err.splitlines()) == 1
        assert [path.name for path in tmp_path.iterdir()] == ["job.toml"]
