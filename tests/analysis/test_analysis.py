"""Analyses of kernel sets: targets, relevant dimensions, spectra, duplicates, reports and plots."""

import dask
import numpy as np
import pytest
import xarray as xr
from helpers.references import dense_view, digits, in_memory, psd
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics.pairwise import cosine_similarity

import dmkl
from dmkl.analysis.analyze import nystrom, upper_bounds
from dmkl.errors import AlignmentWarning, IndefiniteKernelWarning, InputError

M = 90


def centering(m):
    return np.eye(m) - 1 / m


@pytest.fixture(scope="module")
def kernels():
    """Kernels of digits, a multiple of the first, and one that is nearly equal to the first."""
    dense, y = digits()
    return np.concatenate([dense, 3 * dense[:1], dense[:1] + 1e-4 * dense[4:5]]), y


@pytest.fixture(scope="module")
def K(tmp_path_factory, kernels):
    dense, y = kernels
    names = ["wide", "narrow", "upper", "lower", "noise", "thrice", "nearly"]
    return dmkl.create(tmp_path_factory.mktemp("analysis") / "set.zarr", dense, names=names, labels=y, tile=32)


@pytest.fixture(scope="module")
def analysis(K):
    with dask.config.set(scheduler="synchronous"):
        return dmkl.analyze(K)


# --- targets ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("kind", "centered"), [("binary", True), ("multiclass", False), ("multilabel", True)])
def test_alignments_with_the_labels_are_those_with_ideal_kernels(K, kernels, kind, centered):
    """In passes of eight columns, which the random vectors fill, and of which ten classes fill two more."""
    dense, y = kernels
    labels = {"binary": np.where(y > 4, "high", "low"), "multiclass": y}.get(kind, np.stack([y > 4, y % 2], axis=1))
    with dask.config.set({"dmkl.block-width": 8}):
        data = dmkl.analyze(K, labels, steps=("center",) if centered else ()).data
    assert data.attrs["n_passes"] == (4 if kind == "multiclass" else 3)
    columns = [y > 4, y % 2 > 0] if kind == "multilabel" else [y if kind == "multiclass" else y > 4]
    # 1 for equal labels, and otherwise −1, or 0 where there are several classes.
    ideals = [np.where(column[:, None] == column, 1.0, 0.0 if kind == "multiclass" else -1.0) for column in columns]
    C = centering(M) if centered else np.eye(M)
    expected = cosine_similarity(*([(C @ each @ C).ravel() for each in of] for of in (dense, ideals)))
    assert data.target_alignment.dims == (("kernel", "task") if kind == "multilabel" else ("kernel",))
    np.testing.assert_allclose(data.target_alignment.values.reshape(len(dense), -1), expected, atol=1e-12)


@pytest.mark.usefixtures("tasks_of_parts")
def test_tasks_in_threads_do_not_share_their_products(tmp_path):
    """A task that multiplies the next kernel may start before the products of the last are read."""
    K, y = dmkl.create(tmp_path / "set.zarr", psd(12, 120)), np.arange(120) % 3
    expected = dmkl.analyze(K, y).data
    names = ["target_alignment", "eigenvalue"]
    for _ in range(3):
        with dask.config.set(scheduler="threads", num_workers=4):
            xr.testing.assert_allclose(dmkl.analyze(K, y).data[names], expected[names])


# --- relevant dimensions, against eigenvectors of dense matrices ---------------------------------------------------
def by_definition(kernel, columns):
    """d, the noise and the explained share of a centered kernel, by the likelihood of every cut."""
    m = len(kernel)
    z = np.sum((np.linalg.eigh(kernel)[1][:, ::-1].T @ columns) ** 2, axis=1)
    losses = {0: np.log(z.mean())}
    for d in range(1, m // 2 + 1):
        signal, noise = z[:d].mean(), z[d:].mean()
        if signal > noise:
            losses[d] = d / m * np.log(signal) + (m - d) / m * np.log(noise)
    d = min(losses, key=losses.get)
    return d, z[d:].mean() / z.mean(), z[:d].sum() / z.sum()


def spectrum(m, seed):
    """Orthonormal vectors without the constant, and falling eigenvalues."""
    rng = np.random.default_rng(seed)
    U = np.linalg.qr(np.column_stack([np.ones(m), rng.normal(size=(m, m - 1))]))[0][:, 1:]
    return U, 0.9 ** np.arange(m - 1.0)


@pytest.mark.parametrize("kind", ["multiclass", "binary", "multilabel"])
def test_all_vectors_give_the_dimensions_of_dense_matrices(kind):
    dense, y = digits()
    dense = dense[[0, 1, 3, 4]]
    m = len(y)
    C = centering(m)
    labels = {"multiclass": y, "binary": y > 4, "multilabel": np.stack([y > 4, y % 2 == 0], axis=1)}[kind]
    parts = [labels[:, None] == np.unique(y)] if kind == "multiclass" else labels.reshape(m, -1).T[:, :, None]
    data = dmkl.relevant_dimension(dense, labels, n_vectors=m)
    expected = np.array([[by_definition(C @ k @ C, C @ part) for part in parts] for k in dense])
    names = ("relevant_dimension", "label_noise", "label_explained")
    for name, values in zip(names, np.moveaxis(expected, 2, 0), strict=True):
        assert data[name].dims == (("kernel", "task") if kind == "multilabel" else ("kernel",))
        np.testing.assert_allclose(data[name].values.reshape(values.shape), values, atol=1e-6)
    np.testing.assert_array_equal(data.relevant_dimension_most, data.relevant_dimension)
    assert data.attrs["n_passes"] == 1


def test_kernels_of_known_dimension():
    """Two classes by the sign of a vector in few eigenvectors: the first ones, later ones, or none."""
    m, y = 400, np.arange(400) % 2
    target = (y - 0.5) / np.sqrt(m / 4)
    kernels = []
    for place in (0, 4, 12):  # the eigenvector that is the labels
        U, values = spectrum(m, place)
        U = np.linalg.qr(np.column_stack([np.ones(m), target, U[:, : m - 2]]))[0][:, 1:]
        order = np.r_[1 : place + 1, 0, place + 1 : m - 1]
        kernels.append(U[:, order] * values @ U[:, order].T)
    U, values = spectrum(m, 9)
    kernels.append(U * values @ U.T)
    assert dmkl.relevant_dimension(kernels[3:], y, n_vectors=m).label_noise > 0.9
    # One label in ten is wrong.
    wrong = np.where(np.random.default_rng(0).random(m) < 0.1, 1 - y, y)
    for n_vectors in (m, 150):
        data = dmkl.relevant_dimension(kernels, wrong, n_vectors=n_vectors)
        np.testing.assert_array_equal(data.relevant_dimension[:3], [1, 5, 13])
        np.testing.assert_allclose(data.label_noise[:3], 1 - 0.8**2, atol=0.05)


def test_the_largest_cut_that_vectors_show_may_be_too_small():
    """Labels spread evenly over the first sixty eigenvectors, of which fifty are given."""
    m = 300
    U, values = spectrum(m, 0)
    y = U[:, :60].sum(axis=1) > 0
    kernel = U * values**3 @ U.T
    data = dmkl.relevant_dimension([kernel], y, n_vectors=40)
    assert data.relevant_dimension == 30
    assert np.isnan(data.relevant_dimension_most)


def test_relevant_dimensions_need_labels_and_centers():
    kernels, y = digits()
    with pytest.raises(InputError, match="need labels and centered kernels"):
        dmkl.relevant_dimension(kernels[:1], y, steps=())


# --- spectra ------------------------------------------------------------------------------------------------
@given(
    m=st.integers(3, 40),
    width=st.integers(1, 12),
    decay=st.sampled_from([0.0, 0.1, 1.0, 3.0]),
    rank=st.integers(1, 40),
    seed=st.integers(0, 999),
)
def test_eigenvalues_lie_between_their_bounds(m, width, decay, rank, seed):
    rng = np.random.default_rng(seed)
    width = min(width, m)
    vectors = np.linalg.qr(rng.standard_normal((m, m)))[0]
    exact = np.where(np.arange(m) < rank, np.exp(-decay * np.arange(m)), 0.0)
    kernel = vectors * exact @ vectors.T
    block = np.linalg.qr(rng.standard_normal((m, width)))[0]
    result = nystrom(block, kernel @ block, 0.0)[0]
    frobenius = np.array([np.linalg.norm(kernel)])
    assert (result <= exact[:width] + 1e-12).all()
    for norm in (None, frobenius):
        upper = upper_bounds(result[None], np.array([np.trace(kernel)]), norm)[0]
        assert (upper >= exact[:width] - 1e-7).all()
        # The bound is at most that of a single eigenvalue with the rest of the trace.
        left = max(np.trace(kernel) - result.sum(), 0)
        assert (upper <= result + left + 1e-7).all()
    if width >= min(rank, m):
        np.testing.assert_allclose(result, exact[:width], atol=1e-9)


@pytest.mark.parametrize(("dtype", "steps"), [("float32", ("cosine", "center")), ("float64", ("center", "cosine"))])
def test_figures_of_each_kernel(tmp_path, kernels, dtype, steps):
    dense = kernels[0].astype(dtype)
    K = dmkl.create(tmp_path / "set.zarr", dense, tile=32)
    rows = np.arange(0, M, 2)
    expected = dense_view(dense, rows, rows, steps)
    data = dmkl.analyze(K[rows, rows], steps=steps, n_eigenvalues=12).data
    spectra = np.linalg.eigvalsh(expected)[:, ::-1][:, :12]
    scale = spectra[:, :1]
    np.testing.assert_allclose(data.trace, np.trace(expected, axis1=1, axis2=2), rtol=1e-6)
    np.testing.assert_allclose(data.norm, np.linalg.norm(expected, axis=(1, 2)), rtol=1e-6)
    np.testing.assert_allclose(data.effective_rank, data.trace**2 / data.norm**2)
    assert (data.eigenvalue.values <= spectra + 1e-6 * scale).all()
    assert (data.eigenvalue_upper.values >= spectra - 1e-6 * scale).all()
    # Isolated eigenvalues are accurate: the first ones of wide kernels to a few per cent.
    np.testing.assert_allclose(data.eigenvalue.values[[0, 2, 3], 0], spectra[[0, 2, 3], 0], rtol=0.05)


def test_the_whole_spectrum_of_few_samples():
    dense = psd(3, 12)
    data = dmkl.analyze(in_memory(dense, 5), steps=(), n_eigenvalues=12).data
    np.testing.assert_allclose(data.eigenvalue, np.linalg.eigvalsh(dense)[:, ::-1], rtol=1e-9)
    np.testing.assert_allclose(data.eigenvalue_upper, data.eigenvalue, rtol=1e-6)
    exact = np.cumsum(data.eigenvalue.values, axis=1) / data.trace.values[:, None]
    needed = (exact < 0.9).sum(axis=1) + 1
    np.testing.assert_array_equal(data.components_90_most, needed)
    assert (data.components_90_least.values <= needed).all()


def test_a_kernel_with_negative_eigenvalues_is_told(kernels):
    bad = kernels[0][:2].copy()
    bad[1] -= 0.5 * np.linalg.eigvalsh(bad[1])[-1] * np.eye(M)
    with pytest.warns(IndefiniteKernelWarning, match=r"no positive semidefinite kernel: 'kernel_1'\. .*dmkl check"):
        data = dmkl.analyze(in_memory(bad, 40)).data
    assert np.isnan(data.eigenvalue.values[1]).all()
    assert np.isfinite(data.eigenvalue.values[0]).all()
    assert np.isfinite(data.alignment).all()


@pytest.mark.parametrize(("dtype", "offset"), [("float32", 0.0), ("float32", 1e3), ("float64", 1e3)])
def test_rounding_is_no_negative_eigenvalue(dtype, offset):
    low = np.random.default_rng(0).standard_normal((60, 3))
    kernel = ((low @ low.T) + offset)[None].astype(dtype)
    data = dmkl.analyze(in_memory(kernel, 25)).data  # warnings raise errors here
    exact = np.linalg.eigvalsh(centering(60) @ low @ low.T @ centering(60))[::-1][:3]
    rounding = 60 * offset * np.finfo(dtype).eps + 1e-5
    np.testing.assert_allclose(data.eigenvalue.values[0, :3], exact, rtol=rounding)


# --- duplicates ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("probes", "centered"), [(None, True), (64, False)])
def test_duplicates_are_told_from_near_ones(K, probes, centered):
    analysis = dmkl.analyze(K, probes=probes, steps=("center",) if centered else (), threshold=0.999)
    assert analysis.data.repeats.values.tolist() == ["", "", "", "", "", "wide", ""]
    assert analysis.groups() == [["wide", "thrice", "nearly"]]
    alike = np.isin(analysis.data.order, [0, 5, 6])
    assert np.ptp(np.flatnonzero(alike)) == 2  # beside each other
    pairs = analysis.pairs()
    assert {frozenset(pair) for pair in pairs[["kernel", "kernel_2"]].itertuples(index=False, name=None)} == {
        frozenset(pair) for pair in (("wide", "thrice"), ("wide", "nearly"), ("thrice", "nearly"))
    }
    assert (np.diff(pairs.unbiased_alignment) <= 0).all()
    assert len(analysis.pairs(-1.0)) == 21


def hsic(a, b):
    """HSIC₁ by its definition, with sums over different samples: Song et al., JMLR 13 (2012), Eq. 4."""
    off = ~np.eye(len(a), dtype=bool)
    a, b, m = a * off, b * off, len(a)
    pairs = np.einsum("ij,ij->", a, b)
    triples = np.einsum("ij,iq->", a, b) - pairs
    quadruples = a.sum() * b.sum() - 4 * triples - 2 * pairs
    mean = pairs / (m * (m - 1)) - 2 * triples / (m * (m - 1) * (m - 2))
    return mean + quadruples / (m * (m - 1) * (m - 2) * (m - 3))


@pytest.mark.parametrize("steps", [("center",), ("center", "cosine"), ("cosine", "center", "trace"), ()])
def test_unbiased_alignments_are_those_of_all_quadruples(K, steps):
    data = dmkl.analyze(K, steps=steps).data
    dense = dense_view(K, steps=steps)
    product = hsic if steps else lambda a, b: np.vdot(a, b) - a.diagonal() @ b.diagonal()
    sizes = [np.sqrt(product(k, k)) for k in dense]
    expected = [
        [product(a, b) / s / t for b, t in zip(dense, sizes, strict=True)] for a, s in zip(dense, sizes, strict=True)
    ]
    np.testing.assert_allclose(data.unbiased_alignment, expected, atol=1e-9)
    ideal = dmkl.analyze(
        K[[0, 1, 2], [0, 1, 2]], targets=False, steps=steps
    ).data  # too few samples to remove the centers
    assert np.isnan(ideal.unbiased_alignment).all() == bool(steps)


@pytest.mark.parametrize("probes", [None, 60])
def test_independent_tables_are_not_alike(probes):
    """200 samples and 20,000 features: the published alignments are 0.99."""
    tables = np.random.default_rng(8).standard_normal((3, 200, 20_000), dtype=np.float32)
    kernels = tables @ tables.mT
    K = dmkl.create(None, np.stack([*kernels, 2 * kernels[0]]), names=["a", "b", "c", "a again"])
    analysis = dmkl.analyze(K, probes=probes)
    published, unbiased = (analysis.data[name].values[:3, :3] for name in ("alignment", "unbiased_alignment"))
    off = ~np.eye(3, dtype=bool)
    assert (published[off] > 0.95).all()
    error = 0 if probes is None else 4 * analysis.data.unbiased_alignment_error.values[:3, :3][off]
    assert (np.abs(unbiased[off]) < 0.05 + error).all()
    assert analysis.groups() == [["a", "a again"]]
    assert "unbiased alignments of different kernels from" in analysis.summary()
    pairs = analysis.pairs()
    assert pairs.values[:, :2].tolist() == [["a", "a again"]]
    with pytest.warns(AlignmentWarning, match="of 4 centered kernels more than half of the squared norm"):
        dmkl.aligned_weights(K, np.arange(K.shape[1]) % 2)
    weights = dmkl.aligned_weights(K, method="statis").values
    np.testing.assert_allclose(weights[[0, 3]], np.sqrt(0.5), atol=0.05)
    assert (weights[1:3] < 0.2).all()


# --- the whole ----------------------------------------------------------------------------------------------
@pytest.mark.usefixtures("scheduler")
@pytest.mark.parametrize("scheduler", ["threads", pytest.param("processes", marks=pytest.mark.slow)], indirect=True)
def test_the_same_everywhere(tmp_path, kernels):
    dense, y = kernels
    K = dmkl.create(tmp_path / "set.zarr", dense, labels=y, tile=32)
    result = dmkl.analyze(K, seed=3).data
    with dask.config.set(scheduler="synchronous"):
        expected = dmkl.analyze(in_memory(dense, 40), y, seed=3).data
    assert result.attrs["n_passes"] == expected.attrs["n_passes"] == 2
    for name in expected.data_vars:
        if name != "order" and expected[name].dtype.kind == "f":
            np.testing.assert_allclose(result[name], expected[name], rtol=1e-7, atol=1e-9, err_msg=name)
    np.testing.assert_array_equal(result.alignment, K.alignment())


def test_estimates_have_standard_errors(K, kernels, analysis):
    exact, result = analysis.data, dmkl.analyze(K, probes=80, seed=2).data
    assert result.attrs["method"] == "estimate from 80 random probes, seed 2"
    assert result.attrs["n_passes"] == 1
    for name in ("alignment", "target_alignment", "norm", "effective_rank"):
        assert f"{name}_error" not in exact
        error = result[f"{name}_error"].values
        assert (np.abs(result[name] - exact[name]).values <= 4 * error + 1e-9).all()
        assert (error < 0.5 * np.abs(result[name].values).max()).all()
    np.testing.assert_allclose(result.alignment, K.alignment(probes=80, seed=2), atol=1e-12)
    # Without the norms the upper bounds are from the traces only.
    spectra = np.linalg.eigvalsh(centering(M) @ kernels[0] @ centering(M))[:, ::-1][:, :20]
    assert (result.eigenvalue.values <= spectra * (1 + 1e-9) + 1e-12).all()
    assert (result.eigenvalue_upper.values >= spectra * (1 - 1e-9) - 1e-12).all()


def test_errors_of_estimates_are_those_of_the_jackknife(K, kernels):
    signs = 2.0 * np.random.default_rng(2).integers(0, 2, (M, 6)) - 1.0
    P = np.array([signs.T @ centering(M) @ kernel @ centering(M) @ signs for kernel in kernels[0]])

    def alignment(probes):
        pairs = [(a, b) for a in probes for b in probes if a != b]
        inner = np.mean([np.outer(P[:, a, b], P[:, a, b]) for a, b in pairs], axis=0)
        return inner / np.sqrt(np.outer(inner.diagonal(), inner.diagonal()))

    without = np.array([alignment([a for a in range(6) if a != left_out]) for left_out in range(6)])
    result = dmkl.analyze(K, probes=6, seed=2).data
    np.testing.assert_allclose(result.alignment, alignment(range(6)), atol=1e-9)
    np.testing.assert_allclose(result.alignment_error, without.std(axis=0) * np.sqrt(5), atol=1e-9)


def test_a_constant_kernel_is_left_empty(kernels):
    dense = np.stack([kernels[0][0], np.full((M, M), 0.3)])
    analysis = dmkl.analyze(in_memory(dense, 40), kernels[1])
    empty = analysis.data.isel(kernel=1)
    for name in ("alignment", "target_alignment", "norm", "effective_rank", "eigenvalue"):
        assert np.isnan(empty[name]).all(), name
    assert np.isnan(empty[["components_90_most", "components_90_least"]].to_array()).all()
    assert empty.repeats.item() == ""
    assert np.isfinite(analysis.data.target_alignment.values[0])


def test_what_is_told(K, analysis):
    text = analysis.summary()
    assert "7 centered kernels over 90 samples; alignments: exact; 2 passes" in text
    assert "multiples of earlier kernels: thrice" in text
    assert "alike (0.95 or more): wide, thrice, nearly" in text
    frame = analysis.table()
    assert frame.index.tolist() == list(K.names)
    np.testing.assert_array_equal(frame.target_alignment, analysis.data.target_alignment)
    np.testing.assert_allclose(frame.largest_share_least, analysis.data.eigenvalue[:, 0] / analysis.data.trace)


# --- pictures -----------------------------------------------------------------------------------------------
def test_the_map_shows_the_alignments_in_order(analysis):
    ax = analysis.plot_alignment()
    order = analysis.data.order.values
    np.testing.assert_array_equal(
        ax.images[0].get_array(), analysis.data.unbiased_alignment.values[np.ix_(order, order)]
    )
    assert [tick.get_text() for tick in ax.get_yticklabels()] == [analysis.names[j] for j in order]
    assert len(ax.texts) == 49


def test_bars_of_alignments_with_the_labels(K, kernels, analysis):
    ax = analysis.plot_targets()
    widths = [patch.get_width() for patch in ax.patches]
    np.testing.assert_allclose(widths, np.sort(analysis.data.target_alignment.values)[::-1])
    y = kernels[1]
    several = dmkl.analyze(K, np.stack([y > 4, y % 2], axis=1), probes=20)
    best = np.sort(several.data.target_alignment.sel(task="1").values)[::-1]
    np.testing.assert_allclose([patch.get_width() for patch in several.plot_targets("1").patches], best)
    assert len(several.plot_targets().lines) == 2  # dots of two tasks
    with pytest.raises(InputError, match=r"there is no task 'odd': this analysis has the tasks 0, 1"):
        several.plot_targets("odd")
    with pytest.raises(InputError, match="no labels to align with"):
        dmkl.analyze(K, targets=False).plot_targets()


def test_lines_of_spectra(analysis):
    shares = (analysis.data.eigenvalue / analysis.data.trace).values
    order = np.argsort(analysis.data.effective_rank.values, kind="stable")
    for line, j in zip(analysis.plot_spectra().lines, order, strict=True):
        np.testing.assert_allclose(line.get_ydata(), shares[j])
