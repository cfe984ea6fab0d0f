"""Sets of kernels stored as factors, against the same kernels stored as tiles."""

import pickle
import shutil
from pathlib import Path

import dask
import numpy as np
import pytest
import zarr
from helpers.conformance import problems, tree, unseal
from helpers.damage import flip
from helpers.faults import interrupted
from helpers.references import few_columns

import dmkl
from dmkl.errors import InputError, StoreError
from dmkl.health import Examination, check
from dmkl.store import writer
from dmkl.store.tiles import TileWriter

M = 60
SPECS = [{"function": "linear"}, {"function": "cosine", "feature": "a", "columns": [5, 0, 2], "name": "direction"}]
MIXED = [*SPECS, {"function": "rbf", "feature": ["a", "c"], "bandwidth": [0.5, 2]}]


def built(path, specs=SPECS, **more):
    features, y = few_columns()
    return dmkl.build(path, features, specs, **{"labels": y, "tile": 16, **more})


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    """The sets of factors, of factors and tiles, and the second as tiles."""
    folder = tmp_path_factory.mktemp("sets")
    mixed = built(folder / "mixed.zarr", MIXED, storage="factors")
    return built(folder / "factors.zarr"), mixed, built(folder / "tiles.zarr", MIXED, storage="tiles")


# --- storage ---------------------------------------------------------------------------------------------------------
def test_only_features_are_stored_of_kernels_kept_as_factors(sets):
    factors, mixed, tiles = sets
    assert [K.view.source.attrs["format_version"] for K in sets] == [2, 2, 1]
    for name in ("gram_upper", "row_sum", "tile_crc32c"):
        stored = [{file.name for file in Path(K.view.source.location, name, "c").glob("[0-9]*")} for K in sets[:2]]
        assert stored == [set(), set("4567")]
    assert not problems(factors.view.source.location)
    assert not problems(mixed.view.source.location)
    assert [record.get("storage") for record in mixed.provenance] == ["factors"] * 4 + [None] * 4
    assert not any("storage" in record for record in tiles.provenance)
    assert factors.view.factor_widths.tolist() == [9, 4, 2, 3]
    assert mixed.view.factor_widths is None
    assert mixed.select(factors.names).view.factor_widths.tolist() == [9, 4, 2, 3]


@pytest.mark.slow
def test_the_rule_of_auto(tmp_path):
    features, _ = few_columns(18)  # of nine columns in "a"
    kinds = {}
    for m in (18, 19):
        some = {name: np.vstack([table, table[:1]])[:m] for name, table in features.items()}
        for name, specs in {"thin": SPECS, "rbf": [*SPECS, {"function": "rbf"}], "columns": SPECS[1:]}.items():
            K = dmkl.build(tmp_path / f"{name}{m}", some, specs)
            kinds[name, m] = K.view.factor_widths is not None
    assert [name for name, kept in kinds.items() if kept] == [("columns", 18), ("thin", 19), ("columns", 19)]
    lacking = {**few_columns()[0], "b": np.where(np.arange(M)[:, None] == 7, np.nan, few_columns()[0]["b"])}
    assert dmkl.build(tmp_path / "lacking", lacking, SPECS, missing="zero").view.factor_widths is None
    some = dmkl.build(tmp_path / "some", lacking, SPECS, missing="zero", storage="factors", tile=16)
    tiled = dmkl.build(tmp_path / "tiled", lacking, SPECS, missing="zero", storage="tiles", tile=16)
    assert [record.get("storage") for record in some.provenance] == ["factors", None, "factors", "factors"]
    np.testing.assert_allclose(some, tiled, atol=1e-12)


def test_what_cannot_be_kept_is_refused(tmp_path):
    features, _ = few_columns()
    with pytest.raises(InputError, match="of the first, 'a-rbf', its function is rbf; leave storage out"):
        dmkl.build(tmp_path / "x", features, {"function": "rbf"}, storage="factors")
    features["c"][3] = np.nan
    with pytest.raises(InputError, match="of the first, 'c-linear', samples lack 'c'"):
        dmkl.build(tmp_path / "x", features, {"function": "linear", "feature": "c"}, missing="zero", storage="factors")
    for spec, name in ((SPECS[0], "b-linear"), ({"function": "cosine"}, "b-cosine")):
        huge = {"b": np.where(np.arange(M)[:, None] == 4, np.float32(1e25), few_columns()[0]["b"].astype(np.float32))}
        with pytest.raises(InputError, match=f"kernel '{name}': the entry of samples '4' and '4' overflows float32"):
            dmkl.build(tmp_path / "x", huge, spec)
    assert not list(tmp_path.iterdir())


def test_half_precision_takes_half_the_disk(tmp_path):
    features, y = few_columns(dtype=np.float32)
    K = dmkl.build(tmp_path / "half", features, SPECS, labels=y, dtype="float16")
    assert K.dtype == np.float32
    assert not problems(tmp_path / "half")
    rounded = {name: table.astype(np.float16).astype(np.float32) for name, table in features.items()}
    expected = dmkl.build(None, rounded, SPECS)
    np.testing.assert_array_equal(K, expected)
    assert {t.dtype.name for t in K.view.source.computed.axes[0].tables.values()} == {"float16"}
    model = dmkl.MKFDA().fit(K)
    model.save(tmp_path / "model")
    assert not problems(tmp_path / "model")
    new, _ = few_columns(20, seed=5)
    scores = dmkl.load(tmp_path / "model").decision_function(features=new)
    np.testing.assert_array_equal(scores, model.decision_function(features=new))
    features["a"][7, 2] = 1e5
    with pytest.raises(InputError, match="features 'a': row 7 is infinite or exceeds the largest float16, 65504, in"):
        dmkl.build(tmp_path / "x", features, SPECS, dtype="float16")
    for path, specs in ((tmp_path / "x", MIXED), (None, SPECS)):
        with pytest.raises(InputError, match="kernels are stored as float32 or float64, not float16"):
            dmkl.build(path, few_columns()[0], specs, dtype="float16")


@pytest.mark.slow
def test_the_content_id_is_that_of_features_and_recipes(sets, tmp_path):
    K = sets[0]
    same = built(tmp_path / "same", tile=30, labels=None)
    assert K.content_id == same.content_id == dmkl.open(tmp_path / "same").content_id
    others = [
        built(tmp_path / "name", [SPECS[0], {**SPECS[1], "name": "other"}]),
        built(tmp_path / "columns", [SPECS[0], {**SPECS[1], "columns": [5, 2, 0]}]),
        built(tmp_path / "function", [SPECS[0], {**SPECS[1], "function": "linear"}]),
        built(tmp_path / "dtype", dtype="float32"),
        dmkl.build(tmp_path / "values", few_columns(seed=1)[0], SPECS),
    ]
    assert len({K.content_id, *(other.content_id for other in others)}) == 6


# --- values ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("which", [0, 1])
def test_kernels_and_products_are_those_of_tiles(sets, which):
    K, dense = sets[which], sets[2].select(sets[which].names)
    np.testing.assert_allclose(K, dense, atol=1e-12)
    np.testing.assert_allclose(K.center().to_dask(chunk=20), dense.center().to_dask(chunk=20), atol=1e-12)
    rows, cols = np.arange(M)[::-2], np.random.default_rng(1).permutation(M)[:40]
    V = np.random.default_rng(2).normal(size=(40, 3))
    for steps in ((), ("center", "trace"), ("cosine", "center")):
        chosen, expected = (S[rows, cols].with_steps(steps) for S in (K, dense))
        np.testing.assert_allclose(chosen.apply(V), expected.apply(V), atol=1e-10)
        np.testing.assert_allclose(K[cols, cols].project(V), dense[cols, cols].project(V), atol=1e-10)
    np.testing.assert_allclose(K.alignment(), dense.alignment(), atol=1e-10)
    new, _ = few_columns(20, seed=5)
    np.testing.assert_allclose(dmkl.build_cross(K, new), dmkl.build_cross(dense, new), atol=1e-10)
    np.testing.assert_allclose(K.persist().apply(np.ones(M)), dense.apply(np.ones(M)), atol=1e-10)


def test_large_scores_pass_through_files():
    """Scores of held-out rows that exceed the memory are still computed in one pass."""
    rng = np.random.default_rng(0)
    tables = {f"t{j}": rng.normal(size=(2000, 3)) for j in range(2)}
    y, grid = (tables["t0"][:, 0] > 0).astype(int), {"p": [1.5], "lam": np.logspace(-3, 0, 20)}

    def search():
        K = dmkl.build(None, tables, {"function": "linear"}, labels=y)  # anew: sums of an earlier search are not used
        return dmkl.search(dmkl.MKFDA(decision="largest"), K, grid=grid, cv=2, baselines="none", refit=False)

    in_memory = search()
    with dask.config.set({"dmkl.memory": "8MiB"}):
        in_files = search()
    np.testing.assert_array_equal(in_files.scores.score, in_memory.scores.score)
    np.testing.assert_array_equal(in_files.scores.weight, in_memory.scores.weight)
    assert in_files.n_passes_ == in_memory.n_passes_ == 2


# --- other processes, other content ----------------------------------------------------------------------------------
@pytest.mark.parametrize("m", [M, 80_000])
def test_a_replaced_set_is_noticed(tmp_path, m):
    """Tables that are cached in memory, and larger ones."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=(m, 10))
    K = dmkl.build(tmp_path / "set", {"x": values}, {"function": "linear"})
    K.apply(np.ones(m)).compute()
    again = pickle.loads(pickle.dumps(K.view.source))
    dmkl.build(tmp_path / "set", {"x": values + 1}, {"function": "linear"}, overwrite=True)
    with pytest.raises(StoreError, match="holds other features 'x' now than when it was opened"):
        K.apply(np.ones(m)).compute()
    with pytest.raises(StoreError, match="holds another set now"):
        _ = again.names
    shutil.rmtree(tmp_path / "set")
    with pytest.raises(StoreError, match="the features 'x' are gone from"):
        K.apply(np.ones(m)).compute()


# --- interruptions ---------------------------------------------------------------------------------------------------
def test_an_interrupted_build_continues_with_the_tables_that_it_has(tmp_path, sets):
    with interrupted(writer, "write_table", 2):
        built(tmp_path / "set.zarr")
    before = values_of(tmp_path / "set.zarr.partial").stat().st_mtime_ns
    built(tmp_path / "set.zarr")
    assert values_of(tmp_path / "set.zarr").stat().st_mtime_ns == before
    assert tree(tmp_path / "set.zarr") == tree(sets[0].view.source.location)


@pytest.mark.parametrize(("first", "then"), [("tiles", "factors"), ("factors", "factors")])
def test_a_build_that_was_interrupted_among_the_tiles(error_of, tmp_path, sets, first, then):
    with interrupted(TileWriter, "write", 7 if first == "factors" else 75):
        built(tmp_path / "set.zarr", MIXED, storage=first)
    assert ("4 of 8 kernels" in error_of("info", tmp_path / "set.zarr")) == (first == "factors")
    built(tmp_path / "set.zarr", MIXED, storage=then)
    assert tree(tmp_path / "set.zarr") == tree(sets[1 if then == "factors" else 2].view.source.location)


# --- damage ----------------------------------------------------------------------------------------------------------
def values_of(path):
    return path / "features" / "0" / "values" / "c" / "0" / "0"


def exchange_values(path):
    dmkl.build(path.with_name("other"), few_columns(seed=1)[0], SPECS)
    shutil.copy(values_of(path.with_name("other")), values_of(path))


HARM = {
    "damaged": (lambda path: flip(values_of(path)), r"the features 'a' in \S+ cannot be read"),
    "missing": (lambda path: values_of(path).unlink(), r"a part of the features 'a' in \S+ is missing"),
    "replaced": (exchange_values, r"the features 'a' in \S+ are not what was written: a chunk was replaced"),
    "gone": (
        lambda path: (shutil.rmtree(path / "features" / "0"), unseal(path)),
        "is damaged: kernel 'a-linear' is kept as factors, and the features 'a' that it was built from are missing",
    ),
    "other columns": (
        lambda path: unseal(path, kernels=[{**e, "columns": [99]} for e in dmkl.open(path).provenance]),
        "is damaged: kernel 'a-linear' is kept as factors, and its columns are not among the 9 of 'a'",
    ),
    "no recipe": (
        lambda path: unseal(path, kernels=[*dmkl.open(path).provenance[:3], {"name": "direction"}]),
        "is damaged: a kernel has no recipe, and others are kept as factors",
    ),
}


@pytest.mark.parametrize("case", HARM)
def test_damage_is_named(sets, tmp_path, case):
    harm, message = HARM[case]
    copied = Path(shutil.copytree(sets[0].view.source.location, tmp_path / "set.zarr"))
    harm(copied)
    assert problems(copied)
    K = dmkl.open(copied)
    if case == "replaced":  # a pass compares no digests
        K.apply(np.ones(M)).compute()
        with pytest.raises(StoreError, match=message):
            raise K.view.source.verify(0)
    else:
        with pytest.raises(StoreError, match=message):
            K.apply(np.ones(M)).compute()
    if case in ("damaged", "missing", "replaced"):
        report = check(K)
        assert "error" in report.severity
        assert any("features" in str(text) for text in report.message.values)
        assert (report.damaged_tiles.sel(kernel="b-linear") == 0).all()


@pytest.mark.slow
def test_the_checker_names_broken_factors(sets, tmp_path):
    mixed, tiles = (shutil.copytree(sets[k].view.source.location, tmp_path / str(k)) for k in (1, 2))
    shutil.copytree(tiles / "gram_upper" / "c" / "0", mixed / "gram_upper" / "c" / "0")
    assert "0/0/0 must not be there" in problems(mixed)
    shutil.rmtree(mixed / "gram_upper" / "c" / "0")
    assert problems(mixed) == ""
    records = dmkl.open(mixed).provenance
    for changes, message in (
        ({"feature": "z"}, "kernel 0 is 'linear' of 'z', must be linear or cosine"),
        ({"feature_content": "0"}, "kernel 0 is of other features than 'a'"),
        ({"columns": [0, 1]}, "content_id is"),
    ):
        unseal(mixed, kernels=[{**records[0], **changes}, *records[1:]])
        assert message in problems(mixed)
    unseal(mixed, kernels=records, format_version=1)
    assert "format_version is 1, must be 2: 4 kernels have no tiles" in problems(mixed)
    group = zarr.open_group(mixed, mode="r+", use_consolidated=False)
    group["features/0/values"][3, 3] = 9.0
    assert "the digest of 'a' is" in problems(mixed)


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.slow
def test_checks_report_the_figures_of_tiles(output_of, json_of, sets, which, monkeypatch):
    K, dense = sets[which], sets[2].select(sets[which].names)
    expected = check(dense)
    examined = [check(K)]
    # The same path as for a kernel that exceeds the memory of a task.
    whole = Examination.__init__
    monkeypatch.setattr(Examination, "__init__", lambda self, n, seed, hold, *more: whole(self, n, seed, False, *more))
    examined.append(check(K))
    for report in examined:
        for name in ("largest_entry", "trace", "mean_diagonal", "centered_trace", "highest_eigenvalue"):
            np.testing.assert_allclose(report[name], expected[name], rtol=1e-8, err_msg=name)
        np.testing.assert_allclose(report.lowest_eigenvalue, expected.lowest_eigenvalue, atol=1e-10)
        assert report.factor_columns.values[:4].tolist() == [9, 4, 2, 3]
        assert report.factor_bytes.values[:4].tolist() == [8 * M * width for width in (9, 4, 2, 3)]
        assert not report.sizes["finding"]
    place = K.view.source.location
    assert "linear of a, kept as factors of 9 columns, 4.22 KiB" in " ".join(output_of("info", place).split())
    kernels = json_of("info", place)["kernels"]
    assert [kernel.get("factor_bytes") for kernel in kernels][:4] == report.factor_bytes.values[:4].tolist()


def test_repeated_factors_are_told(tmp_path):
    features, _ = few_columns()
    a = features["a"]
    report = check(dmkl.build(tmp_path / "set", {"a": a, "copy": a, "twice": 2 * a, "moved": a + 1}, SPECS[:1]))
    assert report.repeats.values.tolist() == ["", "a-linear", "a-linear", "a-linear"]  # centered kernels are compared
    np.testing.assert_allclose(report.factor, [1, 1, 4, 1])
