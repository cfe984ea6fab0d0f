"""Indexing, selection and transformation of kernel sets, against dense matrices."""

import itertools

import dask
import numpy as np
import pytest
from distributed import Client
from helpers.references import Counting, dense_view, error, over, psd, raise_if_computes, stepped

import dmkl
from dmkl.errors import InputError, MemoryBudgetError

KINDS = ("center", "trace", "multiplicative", "cosine")
CHAINS = [
    *(chain for length in (1, 2) for chain in itertools.product(KINDS, repeat=length)),
    ("center", "cosine", "center"),
    ("cosine", "multiplicative", "trace"),
    ("multiplicative", "center", "cosine"),
]
M = 23
MASK = np.arange(M) % 3 == 1
TRAIN = np.array([20, 3, 7, 0, 15, 11, 8, 22, 4, 18, 13, 1])
TEST = np.array([2, 5, 21, 9])


def computed(build):
    """Compute the result of `build`, which must be lazy."""
    with raise_if_computes():
        lazy = build()
    return np.asarray(lazy.compute())


# --- indexing -----------------------------------------------------------------------------------------------
KEYS = {
    "all": slice(None),
    "slice": slice(2, 19, 3),
    "backwards": slice(None, None, -1),
    "backwards beyond the end": slice(99, 3, -4),
    "mask": MASK,
    "mask as a list": MASK.tolist(),
    "positions": [4, 0, 22],
    "negative positions": np.array([-1, -23, 5]),
    "repeats": np.array([7, 7, 0, 7, 21, 0]),
    "unsigned": np.array([3, 9], dtype=np.uint8),
}


@pytest.mark.parametrize(("rows", "cols"), list(zip(KEYS, itertools.cycle(["repeats", "mask", "backwards", "all"]))))
def test_indexing_is_numpys(stored, dense, rows, cols):
    view = stored[KEYS[rows], KEYS[cols]]
    expected = dense[:, KEYS[rows]][:, :, KEYS[cols]]
    assert view.shape == expected.shape
    np.testing.assert_array_equal(computed(view.to_dask), expected)
    np.testing.assert_array_equal(view.samples, stored.samples[KEYS[rows]])
    np.testing.assert_array_equal(view.train_samples, stored.samples[KEYS[cols]])


def test_indexing_again_takes_from_what_was_taken(stored, dense):
    view = stored[::-1, MASK][TEST, 1:][[2, 0], ::-2]
    expected = dense[:, ::-1][:, :, MASK][:, TEST][:, :, 1:][:, [2, 0]][:, :, ::-2]
    np.testing.assert_array_equal(computed(view.to_dask), expected)
    np.testing.assert_array_equal(stored[np.int64(4), :].to_dask(), dense[:, [4], :])  # an integer index keeps the axis


@pytest.mark.parametrize(
    ("view_of", "message"),
    [
        *(
            (lambda K, key=key: K[key], r"indexed by rows and columns, K\[rows, cols\]")
            for key in (4, (1,), (1, 2, 3), "rbf")
        ),
        (lambda K: K[23, 0], "row 23 is outside the 23 rows"),
        (lambda K: K[0, [3, -24]], "column -24 is outside the 23 columns"),
        (lambda K: K[MASK[:-1], 0], r"row mask must have shape \(23,\), got \(22,\)"),
        (lambda K: K[0, np.ones((23, 23), bool)], r"column mask must have shape \(23,\), got \(23, 23\)"),
        *((lambda K, rows=rows: K[rows, 0], "rows are chosen by") for rows in ([1.0], "s01", None, ...)),
        (lambda K: K.select("gauss"), r"no kernel named 'gauss'; the names are 'rbf', 'chi2', 'linear', 'string'"),
        (lambda K: K.select(["linear", "rbf"]).select("chi2"), "no kernel named 'chi2'"),
        (lambda K: K.select(4), "kernel 4 is outside the 4 kernels of this set"),
        (lambda K: K.select([]), "at least one kernel"),
        (lambda K: K.select([True, False]), r"kernel mask must have shape \(4,\)"),
        (lambda K: K.split(2), "no split 2; this set has 2"),
        (lambda K: K.normalize("center"), "'trace', 'cosine' or 'multiplicative', got"),
        (lambda K: K[:, []].center().apply(np.ones((0, 1))), "column samples, and this view has none"),
        (lambda K: K.center().product(), r"call it before center\(\) and normalize\(\)"),
        (lambda K: K[TEST, TRAIN].project(np.ones(12)), r"got 4 rows and 12 columns; take K\[rows, rows\] first"),
        (lambda K: K[TRAIN, TRAIN[::-1]].project(np.ones(12)), "same samples as rows and columns"),
        (lambda K: K[:3, :].alignment(), r"same samples as rows and columns, got 3 rows and 23 columns; take K\["),
        (lambda K: K[:0, :0].alignment(), "alignment needs samples, and this view has none"),
        (lambda K: K.alignment(probes=2), "at least 3 of them, got 2"),
        *((lambda K, n=n: K.to_dask(n), "chunk must be a positive whole number") for n in (0, -3, 2.5)),
        (lambda K: K.apply(np.ones(M), dtype=complex), "computed in float32 or float64, not in complex128"),
        *(
            (lambda K, d=d: K.with_steps("center", d), "weights must be positive numbers, one for each of the 23")
            for d in (np.ones(3), -np.ones(M), np.eye(M)[0], [np.inf] * M)
        ),
    ],
)
def test_what_is_not_there_is_named(stored, view_of, message):
    with raise_if_computes(), pytest.raises(InputError, match=message):
        view_of(stored)


# --- kernels and labels -------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("asked", "positions"),
    [
        ("linear", [2]),
        (["string", "rbf"], [3, 0]),
        (1, [1]),
        (-1, [3]),
        ([2, "rbf"], [2, 0]),
        (slice(None, None, -2), [3, 1]),
        (np.array([True, False, True, False]), [0, 2]),
        (np.array(["chi2", "linear"]), [1, 2]),
        ((name for name in ("chi2",)), [1]),
    ],
)
def test_select_by_name_position_or_mask(stored, dense, asked, positions):
    view = stored.select(asked)
    assert view.names == tuple(np.array(stored.names)[positions])
    assert [p["name"] for p in view.provenance] == list(view.names)
    assert len(view) == len(positions)
    np.testing.assert_array_equal(computed(view.to_dask), dense[positions])


def test_labels_follow_the_rows(stored):
    view = stored[TEST, TRAIN].center()[::-1, :5]
    rows, cols = TEST[::-1], TRAIN[:5]
    np.testing.assert_array_equal(view.samples, [f"s{i:02}" for i in rows])
    np.testing.assert_array_equal(view.train_samples, [f"s{i:02}" for i in cols])
    np.testing.assert_array_equal(view.labels, rows % 3)
    np.testing.assert_array_equal(view.splits, stored.splits[:, rows])
    for seen in (stored, stored[::-1, ::-1]):
        for number, part in itertools.product((0, 1), (0, 1, 2)):
            np.testing.assert_array_equal(seen.split(number)[part], np.flatnonzero(seen.splits[number] == part))
    assert view.content_id == stored.content_id


def test_square_means_the_same_samples_in_the_same_order(stored):
    assert stored.is_square
    assert stored[TRAIN, TRAIN].is_square
    assert stored[TRAIN, TRAIN].center()[MASK[:12], MASK[:12]].is_square
    assert not stored[TRAIN, TRAIN[::-1]].is_square
    assert not stored[TRAIN, TRAIN].center()[:5, 1:6].is_square


# --- steps --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("chain", CHAINS, ids="-".join)
def test_steps_in_any_order(stored, dense, chain):
    """Training kernels, test rows by training samples, and selections between the steps."""
    rng = np.random.default_rng(0)
    taken = [(TRAIN[::-1], TRAIN[::-1]), (np.array([1, 5, 5, 0]), np.array([0, 2, 4, 4, 9, 1, 7]))]
    between = [s for step, take in itertools.zip_longest(chain, taken) for s in (step, take) if s is not None]
    cases = [(TRAIN, TRAIN, chain), (TEST, TRAIN, chain), (None, None, between)]
    for rows, cols, steps in cases:
        view = stepped(stored if rows is None else stored[rows, cols], steps)
        expected = dense_view(dense, rows, cols, steps)
        V = rng.standard_normal((expected.shape[2], 3))
        assert error(computed(lambda view=view, V=V: view.apply(V)), expected @ V) < 1e-12
        if view.is_square:
            assert error(computed(lambda view=view, V=V: view.project(V)), V.T @ expected @ V) < 1e-12
        if len(chain) < 3:
            assert error(computed(view.to_dask), expected) < 1e-12


@pytest.mark.parametrize(
    ("rows", "cols", "chain", "passes"),
    [
        (None, None, ("center", "trace", "center"), 0),
        (None, None, ("cosine", "center"), 1),
        (TRAIN, TRAIN, ("trace", "cosine"), 0),
    ],
)
def test_statistics_take_no_more_passes_than_they_need(tmp_path, dense, rows, cols, chain, passes):
    whole = dmkl.create(tmp_path / "one-tile.zarr", dense, tile=M)
    K, source = over(whole if rows is None else whole[rows, cols], Counting)
    _, words = stepped(K, chain).measured()
    assert words == passes
    assert sum(source.reads.values()) == passes * len(K)


@pytest.mark.parametrize(("dtype", "value"), [("float32", 0.1), ("float32", 7.7e5), ("float64", 1 / 3), ("float64", 1)])
@pytest.mark.parametrize("chain", ["center,trace", "center,multiplicative", "multiplicative", "center,cosine"])
def test_a_constant_kernel_is_named(tmp_path, dtype, value, chain):
    """Rounding errors of a constant kernel are not normalised to unit size."""
    K = np.stack([psd(1, 13)[0], np.full((13, 13), value)])
    view = dmkl.create(tmp_path / "constant.zarr", K, names=["good", "flat"], tile=5, dtype=dtype)[:11, :11]
    with raise_if_computes():
        result = view.with_steps(chain).apply(np.ones((11, 1)))
    with pytest.raises(InputError, match=r"'flat'.*leave"):
        result.compute()
    view.select("good").with_steps(chain).apply(np.ones((11, 1))).compute()


def test_a_zero_diagonal_has_no_cosine(tmp_path):
    K = psd(2, 7)
    K[1, 3, :] = K[1, :, 3] = 0
    view = dmkl.create(tmp_path / "zero.zarr", K, names=["good", "dead"], tile=3)
    with pytest.raises(InputError, match=r"'dead' has 0 at position 3; use 'trace'"):
        view.normalize("cosine").apply(np.ones(7)).compute()
    rest = np.array([0, 1, 2, 4, 5, 6])
    expected = dense_view(K, rest, rest, ["cosine"])
    assert error(view[rest, rest].normalize("cosine").to_dask(), expected) < 1e-12


# --- the matrices themselves --------------------------------------------------------------------------------
def test_to_dask_is_lazy_and_cut_as_asked(stored, dense, tmp_path):
    with raise_if_computes():
        plain, cut, centred = stored.to_dask(), stored[1:, :].to_dask(chunk=9), stored.center().to_dask()
    assert plain.chunks == ((1,) * 4, (5, 5, 5, 5, 3), (5, 5, 5, 5, 3))
    assert cut.chunks == ((1,) * 4, (9, 9, 4), (9, 9, 5))
    np.testing.assert_array_equal(cut, dense[:, 1:])
    np.testing.assert_array_equal(stored.center(), centred)
    K = dmkl.create(tmp_path / "single.zarr", psd(1, 5).astype("f4"), tile=2)  # without steps the precision is kept
    assert K.to_dask().dtype == K.to_dask().compute().dtype == np.float32
    assert K.center().to_dask().dtype == K.center().to_dask().compute().dtype == np.float64


def test_to_xarray_is_labelled(stored, dense):
    with raise_if_computes():
        array = stored.select(["string", "rbf"])[TEST, TRAIN].center().to_xarray()
    assert array.dims == ("kernel", "sample", "train_sample")
    assert array.kernel.values.tolist() == ["string", "rbf"]
    expected = dense_view(dense, TEST, TRAIN, ["center"])
    part = array.sel(kernel="rbf", sample="s05", train_sample=["s20", "s03"]).values
    np.testing.assert_allclose(part, expected[0, 1, :2], rtol=1e-12)


# --- rectangular sets ---------------------------------------------------------------------------------------
def test_a_rectangular_set_lacks_the_training_statistics_and_cannot_be_projected(tmp_path, dense):
    named = {"samples": [f"s{i:02}" for i in TEST], "train_samples": [f"s{i:02}" for i in TRAIN]}
    rectangular = dmkl.create(tmp_path / "new.zarr", dense[:, TEST][:, :, TRAIN], tile=5, **named)
    assert not rectangular.is_square
    expected = dense[:, TEST][:, :, TRAIN]
    V = np.random.default_rng(0).standard_normal((12, 3))
    assert error(computed(lambda: rectangular[::-1, ::2].apply(V[:6])), expected[:, ::-1, ::2] @ V[:6]) < 1e-12
    np.testing.assert_array_equal(computed(rectangular[::-1, ::2].to_dask), expected[:, ::-1, ::2])
    for step in KINDS:
        with raise_if_computes(), pytest.raises(InputError, match=r"(through|give it to) a fitted model"):
            stepped(rectangular, [step]).apply(np.ones((12, 1)))
    for call in (rectangular.project, lambda _: rectangular.alignment()):
        with pytest.raises(InputError, match="got 4 rows and 12 columns; this set is rectangular"):
            call(np.ones((12, 1)))


# --- the product --------------------------------------------------------------------------------------------
def test_the_product_is_the_geometric_mean(tmp_path):
    K = psd(3, 11) ** 2
    K[1, 2, 5] = K[1, 5, 2] = 0
    stored = dmkl.create(tmp_path / "positive.zarr", K, tile=4, names=["a", "b", "c"], labels=np.arange(11) % 2)
    mean = np.prod(K, axis=0, keepdims=True) ** (1 / 3)
    V = np.random.default_rng(0).standard_normal((11, 2))
    rows = np.array([9, 2, 5, 0, 1, 7])
    with raise_if_computes():
        product = stored.product()
    assert product.names == ("product",)
    np.testing.assert_array_equal(product.labels, stored.labels)
    assert error(product.to_dask(), mean) < 1e-12
    assert error(product.apply(V), mean @ V) < 1e-12
    assert error(product.center().normalize().project(V), V.T @ dense_view(mean, steps=["center", "trace"]) @ V) < 1e-12
    expected = dense_view(mean, rows[:2], rows[2:], ["cosine", "center"])
    assert error(product[rows[:2], rows[2:]].normalize("cosine").center().apply(V[:4]), expected @ V[:4]) < 1e-12
    two = stored.select(["c", "a"]).product()
    assert error(two.to_dask(), np.sqrt(K[2] * K[0])[None]) < 1e-12
    assert two.content_id != product.content_id
    assert error(product.persist().center().apply(np.eye(11)), dense_view(mean, steps=["center"])) < 1e-12


# --- in memory ----------------------------------------------------------------------------------------------
def test_a_persisted_set_reads_nothing(stored, dense):
    K, source = over(stored, Counting)
    held = K.persist()
    assert held.origin == K.origin
    assert set(source.reads.values()) == {1}
    source.reads.clear()
    V = np.random.default_rng(0).standard_normal((M, 3))
    assert error(held.apply(V), dense @ V) < 1e-12
    steps = ["center", "cosine"]
    some = held.select(["string", "rbf"])[TEST, TRAIN]
    expected = dense_view(dense, TEST, TRAIN, steps)[[3, 0]]
    assert error(stepped(some, steps).apply(V[:12]), expected @ V[:12]) < 1e-12
    square = stepped(held[TRAIN, TRAIN], steps)
    assert error(square.project(V[:12]), V[:12].T @ dense_view(dense, TRAIN, TRAIN, steps) @ V[:12]) < 1e-12
    assert not source.reads
    assert error(square.to_dask(), dense_view(dense, TRAIN, TRAIN, steps)) < 1e-12
    with dask.config.set({"dmkl.memory": "10kB"}), pytest.raises(MemoryBudgetError, match=r"9\.77 KiB are allowed"):
        stored.persist()


def test_statistics_over_tiles_that_are_not_held_are_read(stored, dense):
    """Test rows are in memory; their steps need the kernels of the training samples."""
    rows, cols = np.arange(8), np.arange(10, 23)
    K, source = over(stored[rows, cols], Counting)
    held = K.persist()
    loaded = set(source.reads)
    source.reads.clear()
    view = held.center().normalize("cosine")
    expected = dense_view(dense, rows, cols, ["center", "cosine"])
    assert error(view.apply(np.eye(13)), expected) < 1e-12
    assert source.reads
    assert not loaded & set(source.reads)


def test_persisted_on_a_cluster(stored, dense, cluster):
    with Client(cluster):
        held = stored.persist()
        assert error(held.apply(np.eye(M)), dense) < 1e-12
    # If the memory of the workers is not accessible, the tiles are read instead.
    assert error(held.apply(np.eye(M)), dense) < 1e-12


def test_a_notebook_shows_names_as_text(tmp_path):
    shown = dmkl.create(tmp_path / "k.zarr", {"<rna>": np.eye(4)}).center()._repr_html_()
    assert "&lt;KernelSet 1 kernels, 4 × 4, float64, center&gt;" in shown
    assert "&lt;rna&gt;" in shown
