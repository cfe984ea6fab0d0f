"""Kernels of low rank against dense NumPy and scikit-learn."""

import re
import shutil

import numpy as np
import pytest
from helpers.conformance import problems, tree, unseal
from helpers.faults import interrupted
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics.pairwise import rbf_kernel

import dmkl
from dmkl.errors import ApproximationWarning, InputError, StoreError
from dmkl.store.features import read_tables
from dmkl.store.writer import StoreWriter

quiet = pytest.mark.filterwarnings("ignore::dmkl.errors.ApproximationWarning")
M = 90
TRAIN = np.r_[0:30, 40:80]  # in each split; the others are the test rows
SPLIT = np.where(np.isin(np.arange(M), TRAIN), 0, 2)[None]
ALL = ["linear", "polynomial", "cosine", "rbf", "laplacian", "chi2", "intersection", "pyramid", "proximity"]
KEYS = {"pyramid": {"levels": 2}, "proximity": {"scales": 5}}


def table(m=M, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.gamma(2.0, size=(m, 5))
    X[:, :3] += 2 * np.eye(3)[np.arange(m) % 3]
    return X


X, Y = table(), np.arange(M) % 3


def built(path, spec, features=X, **more):
    return dmkl.build(path, {"x": features}, spec, **{"labels": Y, "splits": SPLIT, **more})


def approximation(K):
    return K.provenance[0]["approximation"]


def landmarks(K):
    """Positions of the landmarks of the first kernel."""
    source = K.view.source
    tables = read_tables(source.location) if hasattr(source, "location") else source.axes[0].tables
    values = tables[approximation(K)["points"]].read(slice(None))
    return np.array([np.flatnonzero((X == row).all(axis=1)).item() for row in values])


# --- interruptions ---------------------------------------------------------------------------------------------------
@quiet
@pytest.mark.parametrize("left", ["values", "center", "zarr.json"])
def test_a_build_that_was_killed_while_it_removed_tables_goes_on(tmp_path, monkeypatch, left):
    spec = {"function": "rbf", "bandwidth": [0.5, 1.0], "rank": 20}
    whole = built(tmp_path / "whole", spec, tile=32)

    def kill(writer, names):
        for folder in (writer.folder / "features").iterdir():
            if folder.is_dir() and writer._group[f"features/{folder.name}"].attrs["name"] in names:
                for entry in folder.iterdir():
                    if entry.name != left:
                        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(StoreWriter, "forget_features", kill)
        with pytest.raises(KeyboardInterrupt):
            built(tmp_path / "set", spec, tile=32)
    again = built(tmp_path / "set", spec, tile=32)
    assert again.content_id == whole.content_id
    assert not problems(tmp_path / "set")
    assert tree(tmp_path / "set").keys() == tree(tmp_path / "whole").keys()


# --- values ----------------------------------------------------------------------------------------------------------
@quiet
@pytest.mark.parametrize("function", ALL)
def test_nystroem_is_the_product_over_the_landmarks(function, tmp_path):
    spec = {"function": function, **KEYS.get(function, {})}
    dense = np.asarray(built(None, spec).to_dask())[0]
    K = built(tmp_path / "set", {**spec, "rank": 20}, tile=32)
    L = landmarks(K)
    assert len(L) == 20
    expected = dense[:, L] @ np.linalg.pinv(dense[np.ix_(L, L)], rcond=1e-12, hermitian=True) @ dense[L]
    scale = np.abs(dense).max()
    np.testing.assert_allclose(np.asarray(K.to_dask())[0], expected, atol=1e-9 * scale)
    rank = {"linear": 5, "cosine": 5}.get(function, 20)  # K_LL has deficient rank
    assert K.view.factor_widths.tolist() == [rank] == [approximation(K)["rank"]]
    lost = np.trace(dense - expected) / np.trace(dense)
    np.testing.assert_allclose(approximation(K)["trace_lost"], lost, atol=1e-10)
    assert np.linalg.eigvalsh(dense - np.asarray(K.to_dask())[0])[0] > -1e-9 * scale * M
    assert not problems(tmp_path / "set")


@quiet
@pytest.mark.slow
def test_fourier_features_approach_the_kernel(tmp_path):
    spec = {"function": "rbf", "gamma": 0.02, "approximation": "fourier", "random_state": 3}
    dense, errors = rbf_kernel(X, gamma=0.02), []
    many = np.vstack([X] * 50)
    for rank in (20, 200, 2000):
        features = {} if rank <= M else {"features": many, "labels": None, "splits": None}
        K = built(None, {**spec, "rank": rank}, **features)[:M, :M]
        errors.append(np.linalg.norm(np.asarray(K.to_dask())[0] - dense) / np.linalg.norm(dense))
        np.testing.assert_allclose(approximation(K)["frobenius_error"], errors[-1], rtol=1e-9 if rank <= M else 0.2)
    assert errors[0] > 2 * errors[1] > 4 * errors[2]


def test_auto_keeps_its_share_by_no_more_columns_than_needed(tmp_path):
    for share in (0.93, 0.97):
        K = built(tmp_path / "set", {"function": "rbf", "bandwidth": 3, "rank": "auto", "share": share}, overwrite=True)
        Z = read_tables(K.view.source.location)["x-rbf: factor"].read(slice(None))[TRAIN]
        kept = np.cumsum((Z**2).sum(axis=0)) / len(TRAIN)
        assert kept[-2] < share <= kept[-1]
        np.testing.assert_allclose(Z.T @ Z, np.diag((Z**2).sum(axis=0)), atol=1e-9)
    with pytest.warns(ApproximationWarning, match=r"rank 35 lacks .*half of the training samples do not keep 0\.99"):
        K = built(tmp_path / "set", {"function": "laplacian", "bandwidth": 0.1, "rank": "auto"}, overwrite=True)
    assert K.view.factor_widths.tolist() == [len(TRAIN) // 2]


# --- landmarks -------------------------------------------------------------------------------------------------------
@quiet
@given(
    part=st.sets(st.integers(0, M - 1), min_size=10, max_size=60),
    rank=st.integers(1, 10) | st.just("auto"),
    how=st.sampled_from(["kmeans", "uniform"]),
    seed=st.integers(0, 5),
)
def test_landmarks_and_ranks_depend_on_training_samples_alone(part, rank, how, seed):
    train = np.array(sorted(part))
    spec = {"function": "rbf", "rank": rank, "landmarks": how, "random_state": seed}
    K = built(None, spec, train=train)
    assert np.isin(landmarks(K), train).all()
    assert len(set(landmarks(K))) == len(landmarks(K))
    changed = np.where(np.isin(np.arange(M), train)[:, None], X, 7 * X + 1)
    again = built(None, spec, changed, train=train)
    np.testing.assert_allclose(K[train, train], again[train, train], atol=1e-10)


# --- new samples -----------------------------------------------------------------------------------------------------
SPECS = [
    {"function": "rbf", "rank": 30, "columns": [4, 0, 2], "name": "some"},
    {"function": ["chi2", "linear"], "rank": 30},
    {"function": "rbf", "gamma": 0.02, "rank": 60, "approximation": "fourier", "name": "fourier"},
]


@quiet
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.slow
def test_predictions_of_a_saved_model_are_those_of_training(dtype, tmp_path):
    K = built(tmp_path / "set", SPECS, dtype=dtype, tile=32)
    again = dmkl.open(tmp_path / "set")
    np.testing.assert_array_equal(again, K)
    model = dmkl.MKFDA(p=2, lam=1e-2).fit(again[TRAIN, TRAIN])
    model.save(tmp_path / "model")
    assert not problems(tmp_path / "model")
    loaded, tol = dmkl.load(tmp_path / "model"), 1e-9 if dtype == "float64" else 1e-4
    np.testing.assert_allclose(
        loaded.decision_function(features={"x": X}), model.decision_function(again[:, TRAIN]), atol=tol, rtol=tol
    )
    cross = dmkl.build_cross(tmp_path / "set", {"x": X[:20]}, tmp_path / "cross")
    np.testing.assert_allclose(cross, np.asarray(K.to_dask())[:, :20], atol=tol, rtol=tol)
    lazy = built(None, SPECS, dtype=dtype, tile=32)
    np.testing.assert_array_equal(lazy, K)
    expected = np.asarray(cross.to_dask())[:, :, TRAIN]
    np.testing.assert_allclose(dmkl.build_cross(lazy[:, TRAIN], {"x": X[:20]}), expected, atol=tol)
    with pytest.raises(InputError, match="'x-chi2' is of low rank; see contributions"):
        model.feature_weights("x-chi2")


@quiet
def test_new_samples_that_lack_the_features_are_the_mean(tmp_path):
    K = built(tmp_path / "set", SPECS)
    new = X[:4].copy()
    new[1] = np.nan
    with pytest.raises(InputError, match="samples lack features: 'x' is missing for 1 of 4"):
        dmkl.build_cross(K[TRAIN, TRAIN], {"x": new})
    cross = np.asarray(dmkl.build_cross(K[TRAIN, TRAIN], {"x": new}, missing="zero").to_dask())
    dense = np.asarray(K[:, TRAIN].to_dask())
    np.testing.assert_allclose(cross[:, [0, 2, 3]], dense[:, [0, 2, 3]], atol=1e-9)
    np.testing.assert_allclose(cross[:, 1], dense[:, TRAIN].mean(axis=1), atol=1e-9)


# --- storage ---------------------------------------------------------------------------------------------------------
def test_half_precision_rounds_the_factors_and_not_the_features(tmp_path):
    K = built(tmp_path / "set", {"function": "rbf", "bandwidth": 4, "rank": 40}, dtype="float16")
    exact = built(None, {"function": "rbf", "bandwidth": 4, "rank": 40})
    tables = read_tables(tmp_path / "set")
    assert [name for name, table in tables.items() if table.dtype == np.float16] == ["x-rbf: factor"]
    assert 0 < np.abs(np.asarray(K.to_dask()) - np.asarray(exact.to_dask())).max() < 2e-3
    model = dmkl.MKFDA().fit(K)
    scores = model.decision_function(K)
    np.testing.assert_allclose(model.decision_function(features={"x": X}), scores, atol=0.02 * np.abs(scores).max())


def test_an_interrupted_build_is_continued(tmp_path):
    with interrupted(StoreWriter, "keep_factors"):
        built(tmp_path / "set", {"function": "rbf", "bandwidth": 4, "rank": 50})
    K = built(tmp_path / "set", {"function": "rbf", "bandwidth": 4, "rank": 40})
    np.testing.assert_array_equal(K, built(None, {"function": "rbf", "bandwidth": 4, "rank": 40}))
    assert len(read_tables(tmp_path / "set")) == 3


def test_damage_is_named(tmp_path):
    K = built(tmp_path / "set", {"function": "rbf", "bandwidth": 4, "rank": [30, 40]})
    for changes, message in (
        ({"points": "x"}, "kernel 0 is of low rank, and has no table 'points': 'x'"),
        ({"rank": 20}, r"kernel 0 is of rank 20 by 'nystroem', its map is \(30, 30\), must be of rank 30 by"),
    ):
        first = {**K.provenance[0], "approximation": {**approximation(K), **changes}}
        unseal(tmp_path / "set", kernels=[first, K.provenance[1]])
        assert re.search(message, problems(tmp_path / "set"))
        if "points" in changes:
            with pytest.raises(StoreError, match="the landmarks of kernel 'x-rbf-rank30', or what maps to"):
                dmkl.build_cross(tmp_path / "set", {"x": X})


# --- refusals and messages -------------------------------------------------------------------------------------------
RBF = {"function": "rbf", "rank": 5}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({**RBF, "rank": 71}, "kernel 'x-rbf': rank must be at most the 70 training samples, got 71"),
        ({**RBF, "rank": np.nan}, "rank must be an integer ≥ 1, 'auto', or a list of these, got nan"),
        ({**RBF, "rank": "auto", "share": 1.0}, "share must be a number between 0 and 1, got 1.0"),
        ({**RBF, "landmarks": "random"}, "landmarks must be 'kmeans' or 'uniform', got 'random'"),
        ({**RBF, "approximation": "svd"}, "approximation must be 'nystroem' or 'fourier', got 'svd'"),
        ({**RBF, "share": 0.9}, "belong to a rank, and share to rank='auto'; give that too"),
        ({"function": "rbf", "landmarks": "uniform"}, "approximation, landmarks, share, random_state belong to a rank"),
        ({"function": "random_rbf", "rank": 3}, "random_rbf takes no 'rank'"),
        ({**RBF, "function": "chi2", "approximation": "fourier"}, "Fourier features are for rbf and a rank that is a"),
        ({**RBF, "rank": "auto", "approximation": "fourier"}, "Fourier features are for rbf and a rank that is a"),
    ],
)
def test_bad_input_is_refused(spec, message, tmp_path):
    with pytest.raises(InputError, match=message) as refused:
        built(tmp_path / "set", spec)
    assert "\n" not in str(refused.value)
    assert not list(tmp_path.iterdir())


def test_bad_features_are_refused(tmp_path):
    with pytest.raises(InputError, match="rank must be at most the 0 training samples, got auto"):
        built(tmp_path / "set", {**RBF, "gamma": 1.0, "rank": "auto"}, splits=[[2] * M])
    lacking = np.where(np.arange(M)[:, None] == 85, np.nan, X)
    with pytest.raises(InputError, match="kernel 'x-rbf' has a rank, but samples lack 'x'"):
        built(tmp_path / "set", RBF, lacking, missing="zero")
    with pytest.raises(InputError, match="kernel 'x-linear' is zero at all its landmarks, so it has no approximation"):
        built(tmp_path / "set", {"function": "linear", "rank": 5}, np.zeros_like(X))
    assert not list(tmp_path.iterdir())


@pytest.mark.filterwarnings("default")
def test_what_is_lost_is_told(notes_of, output_of, tmp_path):
    np.savez(tmp_path / "all.npz", x=X, y=Y)
    err = notes_of("build", tmp_path / "set", tmp_path / "all.npz", "--function", "rbf", "--rank", "5,auto")
    text = " ".join(err.split())
    lost = dmkl.open(tmp_path / "set").provenance[0]["approximation"]["trace_lost"]
    assert f"the approximation of kernel 'x-rbf-rank5' by rank 5 lacks {lost:.1%} of its trace" in text
    assert "transforms are taken from all 90 samples" in text
    assert f"rank 5 (nystroem, {lost:.2%} of the trace lost)" in " ".join(output_of("info", tmp_path / "set").split())
    result = dmkl.search(dmkl.Uniform(), built(None, RBF, splits=None), grid={"lam": [0.1]}, cv=2, baselines="none")
    assert "The bandwidths, landmarks or transforms of 1 kernel are taken from all samples" in result.summary()
