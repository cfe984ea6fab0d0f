"""After a flip of any bit of any file, loads return the original data or raise a plain error; `check` reports it."""

import json
import shutil

import numpy as np
import pytest
from dask.base import tokenize
from helpers.faults import interrupted, one_gib_more

import dmkl
from dmkl.errors import DmklError
from dmkl.health import check, damage
from dmkl.solvers.workspace import Workspace, damage_of_state
from dmkl.store.features import read_tables
from dmkl.store.reader import StoreReader

M, TRAIN = 14, np.arange(10)
SLOW = [pytest.mark.slow, pytest.mark.timeout(1800)]
MANY = {"set": 600, "model": 500, "result": 300, "state": 900}


def searched(path, state):
    K = dmkl.open(path)[TRAIN, TRAIN]
    return dmkl.search(
        dmkl.MKFDA(solver=dmkl.Subspace(basis=4), tol=1e-9), K, grid={"p": [1.5], "lam": [1e-3, 1.0]}, cv=2, state=state
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("flips")
    rng = np.random.default_rng(0)
    features = {"a": rng.normal(size=(M, 3)), "b": rng.normal(size=(M, 2))}
    specs = [{"function": "rbf", "gamma": 0.3}, {"function": "linear"}]
    splits = [np.where(np.arange(M) < 10, 0, 2)]
    dmkl.build(folder / "set", features, specs, labels=np.arange(M) % 2, splits=splits, tile=8)
    K = dmkl.open(folder / "set")[TRAIN, TRAIN]
    dmkl.MKFDA(p=1.5).fit(K).save(folder / "model")
    with interrupted(Workspace, "commit", 2):
        searched(folder / "set", folder / "state")
    shutil.copytree(folder / "state", folder / "before")
    searched(folder / "set", None).save(folder / "result")
    return folder


# --- uses of each file -----------------------------------------------------------------------------------------------
def read_set(folder):
    reader = StoreReader(folder / "set")
    reader.forget()
    K = dmkl.open(folder / "set")
    every = np.arange(len(K))
    tables = read_tables(folder / "set").values()
    features = [(table.name, table.columns, table.center, table.read(slice(None))) for table in tables]
    statistics = [reader.row_sum(every), reader.diagonal(every), reader.tile_crc32c()]
    labels = [K.names, K.samples, K.labels, K.splits, K.provenance]
    return labels, np.asarray(K), statistics, features, reader.attrs


def read_model(path):
    model = dmkl.load(path)
    tables = [table.read(slice(None)) for table in model.features_.tables.values()]
    arrays = [model.weights_, model.dual_coef_, model.history_, model.classes_, model.train_samples_]
    return model.get_params(), model._state(), arrays, tables, model.features_.as_json(), model.statistics_


def read_result(folder):
    result = dmkl.load(folder / "result")
    return result.scores, result.rule, read_model(folder / "result" / "best"), result.best_.dual_coef_


def go_on(folder):
    """Resume the search from a copy of its state, which changes."""
    shutil.rmtree(folder / "state")
    shutil.copytree(folder / "before", folder / "state")
    scores = searched(folder / "set", folder / "state").scores
    return scores.drop_vars([name for name in scores if str(name).endswith("seconds")]).drop_attrs()


def damage_of_set(path):
    try:
        report = check(dmkl.open(path), n_steps=1)
    except DmklError as error:
        return [str(error)]
    return report.message.values[report.severity.values == "error"].tolist()


USES = {
    "set": ("set", read_set, damage_of_set, 1),
    "model": ("model", lambda folder: read_model(folder / "model"), damage, 1),
    "result": ("result", read_result, damage, 1),
    # The resumption of a search is slow.
    "state": ("before", go_on, damage_of_state, 12),
}


def means_the_same(file, before, after):
    """Whether a JSON file has the same content, so that it is not damaged."""
    try:
        return file.suffix == ".json" and json.loads(before) == json.loads(after)
    except ValueError:
        return False


def flips(files, count, seed):
    """Yield flips (file, byte, bit) that cover every file, its beginning and its end."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(files))
    for number in range(count):
        file = files[order[number % len(files)]]
        size = file.stat().st_size
        yield file, int(rng.integers(size)), int(rng.integers(8))


@pytest.mark.parametrize(("what", "count"), [("set", 12), *(pytest.param(*case, marks=SLOW) for case in MANY.items())])
def test_no_flipped_bit_goes_unseen(made, tmp_path, what, count):
    folder = shutil.copytree(made, tmp_path / "made")
    name, use, find_damage, every = USES[what]
    expected = tokenize(use(folder))
    assert not list(find_damage(folder / name))
    # The record of the pass before is read only where the newest one is damaged, and is checked then.
    files = sorted(file for file in (folder / name).rglob("*") if file.is_file() and file.name != "state-before.json")
    unseen = []
    for number, (file, byte, bit) in enumerate(flips(files, count, seed=len(files))):
        sound = file.read_bytes()
        flipped = bytearray(sound)
        flipped[byte] ^= 1 << bit
        file.write_bytes(flipped)
        where = f"bit {bit} of byte {byte} of {file.relative_to(folder)}"
        with one_gib_more():
            try:
                if number % every == 0 and tokenize(use(folder)) != expected:
                    unseen.append(f"{where} changes what is read")
            except DmklError:
                pass
            if not list(find_damage(folder / name)) and not means_the_same(file, sound, flipped):
                unseen.append(f"{where} is not found by check")
        file.write_bytes(sound)
    assert not unseen
