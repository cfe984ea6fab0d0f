"""Relevant dimensions against eigenvectors of dense matrices, and on kernels whose dimension is known."""

import numpy as np
import pytest
from helpers.references import digits

import dmkl
from dmkl.errors import InputError


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
    C = np.eye(m) - 1 / m
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


def test_what_is_refused():
    kernels, y = digits()
    with pytest.raises(InputError, match="need labels and centered kernels"):
        dmkl.relevant_dimension(kernels[:1], y, steps=())


def test_the_command(output_of, error_of, store):
    out = output_of("analyze", store, "--all", "--relevant-dimension")
    data = dmkl.analyze(dmkl.open(store)).data
    assert "label noise  relevant dimension" in out
    assert f"{data.label_noise.values[0]:.3g} " in out
    words = "--relevant-dimension needs stored labels and steps with center"
    assert words in error_of("analyze", store, "--relevant-dimension", "--no-targets")
