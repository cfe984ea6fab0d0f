"""Transforms of counts against NumPy and scikit-learn; their statistics are from training rows, stored with sets."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import zarr
from helpers.conformance import problems
from sklearn.feature_extraction.text import TfidfTransformer

import dmkl
from dmkl.errors import FeatureWarning, InputError

rng = np.random.default_rng(0)
GENES = [f"g{k}" for k in range(12)]
COUNTS = pd.DataFrame(rng.poisson(1.5, (40, 12)) * 1.0, [f"c{i}" for i in range(40)], GENES)
COUNTS.iloc[[3, 33]] = 0.0  # rows without a count
COUNTS.iloc[:25, 11] = 0.0  # unseen in training
TRAIN = np.arange(25)
KIND = pd.Series(np.where(np.arange(40) % 2, "a", "b"), COUNTS.index)
SETS = {"first": GENES[:5], "second": GENES[4:]}


def transformed(steps, counts=COUNTS, training=COUNTS.iloc[TRAIN]):
    """The transforms by their formulas, row by row."""
    X, L = counts.to_numpy(), training.to_numpy()

    def one(values, step, learned_from):
        if step == "log1p":
            return np.log1p(values)
        if step == "size-factor":
            target = np.median([row.sum() for row in learned_from if row.sum() > 0])
            return np.array([row / row.sum() * target if row.sum() else row for row in values])
        idf = TfidfTransformer(smooth_idf=True).fit(learned_from).idf_ - 1  # ln((1 + n)/(1 + n_k))
        return values * np.log1p(np.exp(idf))

    for step in steps:
        X, L = one(X, step, L), one(L, step, L)
    return X


@pytest.mark.parametrize("steps", ["log1p", "tfidf", ("size-factor", "log1p"), ("log1p", "size-factor", "tfidf")])
@pytest.mark.parametrize("form", ["dense", "sparse", "factors"])
def test_kernels_are_of_transformed_counts(steps, form, tmp_path):
    given = {"X": scipy.sparse.csr_matrix(COUNTS.to_numpy()) if form == "sparse" else COUNTS}
    spec = {"function": "linear", "transform": steps}
    storage = "factors" if form == "factors" else "tiles"
    K = dmkl.build(tmp_path / "k", given, spec, train=TRAIN, storage=storage, tile=16)
    Z = transformed([steps] if isinstance(steps, str) else steps)
    np.testing.assert_allclose(np.asarray(K)[0], Z @ Z.T, atol=1e-5)
    np.testing.assert_allclose(np.asarray(dmkl.build(None, given, spec, train=TRAIN))[0], Z @ Z.T, atol=1e-5)
    assert K.provenance[0].get("training_rows") == (None if steps == "log1p" else 25)
    assert not problems(tmp_path / "k")


def test_a_set_without_its_learned_factors_breaks_the_format(tmp_path):
    dmkl.build(tmp_path / "k", {"X": COUNTS}, {"function": "linear", "transform": "tfidf"}, storage="tiles")
    tables = zarr.open_group(tmp_path / "k", mode="r+")["features"]
    (key,) = (key for key, table in tables.groups() if table.attrs["name"].endswith("factors 0"))
    del tables[key]
    assert "has no table 'X: tfidf: factors 0'" in problems(tmp_path / "k")


@pytest.mark.parametrize("more", [{}, {"rank": 6, "gamma": 0.05}])
def test_new_samples_take_the_numbers_of_training(more, tmp_path):
    function = "rbf" if more else "linear"
    steps = ["size-factor", "tfidf", "log1p"]
    spec = {"function": function, "columns": SETS, "transform": steps, **more}
    K = dmkl.build(tmp_path / "k", {"X": COUNTS.iloc[TRAIN]}, spec, labels=KIND.iloc[TRAIN], dtype="float64")
    new = COUNTS.iloc[25:]
    shuffled = new[rng.permutation(GENES)].assign(further=9.0)
    Z = {"known": transformed(steps)[:25], "new": transformed(steps)[25:]}
    if not more:
        for k, columns in enumerate((slice(0, 5), slice(4, 12))):
            expected = Z["new"][:, columns] @ Z["known"][:, columns].T
            np.testing.assert_allclose(np.asarray(dmkl.build_cross(K, {"X": shuffled}))[k], expected, atol=1e-8)
    else:
        plain = {name: pd.DataFrame(values, columns=GENES) for name, values in Z.items()}
        direct = dmkl.build(None, {"X": plain["known"]}, spec | {"transform": None}, dtype="float64")
        expected = np.asarray(dmkl.build_cross(direct, {"X": plain["new"]}))
        np.testing.assert_allclose(dmkl.build_cross(K, {"X": shuffled}), expected, atol=1e-7)
    model = dmkl.MKFDA(p=2.0, lam=0.1).fit(K)
    model.save(tmp_path / "model")
    scores = model.decision_function(dmkl.build_cross(K, {"X": new})).values
    loaded = dmkl.load(tmp_path / "model")
    np.testing.assert_allclose(loaded.decision_function(features={"X": shuffled}).values, scores, atol=1e-9)


def test_a_missing_column_is_filled_in_after_the_transform():
    K = dmkl.build(None, {"X": COUNTS.iloc[TRAIN]}, {"function": "linear", "transform": ["size-factor", "log1p"]})
    new = COUNTS.iloc[25:].drop(columns="g7")
    known, zeros = transformed(["size-factor", "log1p"])[:25], COUNTS.iloc[25:].assign(g7=0.0)
    filled = transformed(["size-factor", "log1p"], zeros)
    for how, value in (("zero", 0.0), ("mean", known[:, 7].mean())):
        filled[:, 7] = value
        with pytest.warns(FeatureWarning, match="1 of the 12 columns"):
            cross = dmkl.build_cross(K, {"X": new}, missing_features=how)
        np.testing.assert_allclose(np.asarray(cross)[0], filled @ known.T, rtol=1e-5)


def test_samples_without_the_table_stay_without():
    lacking = COUNTS.copy()
    lacking.iloc[[2, 30]] = np.nan
    spec = {"function": "linear", "transform": ["size-factor", "log1p"]}
    K = dmkl.build(None, {"X": lacking}, spec, train=TRAIN, missing="zero")
    present = [i for i in range(40) if i not in (2, 30)]
    Z = transformed(["size-factor", "log1p"], COUNTS.iloc[present], COUNTS.iloc[[i for i in TRAIN if i != 2]])
    np.testing.assert_allclose(np.asarray(K[present, present])[0], Z @ Z.T, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (-1.0, "transform is for counts, with no negative values, but 'X' has -1 at sample 'c5', column 'g3'; name a"),
        (np.nan, r"features 'X': sample 'c5' \(row 5\) is nan in column 'g3' .*impute what is missing"),
    ],
)
@pytest.mark.parametrize("steps", ["log1p", ["size-factor", "log1p"], "tfidf"])
def test_what_is_no_count_is_refused(value, message, steps):
    wrong, spec = COUNTS.copy(), {"function": "linear", "transform": steps}
    wrong.iloc[5, 3] = value
    with pytest.raises(InputError, match=message):
        dmkl.build(None, {"X": wrong}, spec)
    K = dmkl.build(None, {"X": COUNTS.iloc[6:]}, spec)
    with pytest.raises(InputError, match=message):
        dmkl.build_cross(K, {"X": wrong})


@pytest.mark.parametrize("steps", [["impute"], ["impute", "log1p"]])
def test_missing_values_become_means_of_training(steps):
    values = COUNTS.mask(np.random.default_rng(1).random(COUNTS.shape) < 0.2)
    values -= 5.0 * (steps == ["impute"])  # which takes negative values too
    values.iloc[30] = np.nan  # lacks the table
    K = dmkl.build(None, {"X": values}, {"function": "linear", "transform": steps}, train=TRAIN, missing="zero")
    filled = values.fillna(values.iloc[TRAIN].mean())
    Z = (np.log1p(filled) if "log1p" in steps else filled).to_numpy()
    rows = np.delete(np.arange(40), 30)
    np.testing.assert_allclose(np.asarray(K[rows, rows])[0], Z[rows] @ Z[rows].T, rtol=1e-5, atol=1e-5)
    cross = dmkl.build_cross(K[TRAIN, TRAIN], {"X": values.iloc[31:, ::-1]})
    np.testing.assert_allclose(np.asarray(cross)[0], Z[31:] @ Z[TRAIN].T, rtol=1e-5, atol=1e-5)


def test_steps_are_named():
    with pytest.raises(InputError, match="transform must be 'impute', 'size-factor', 'log1p', 'tfidf' or a list of"):
        dmkl.build(None, {"X": COUNTS}, {"function": "linear", "transform": "log"})
    with pytest.raises(InputError, match="'X' is 0 in all training samples"):
        dmkl.build(None, {"X": COUNTS * 0}, {"function": "rbf", "transform": "size-factor"})


def test_on_the_command_line(notes_of, output_of, tmp_path):
    COUNTS.to_csv(tmp_path / "X.csv", index_label="sample")
    (tmp_path / "train.txt").write_text("\n".join(COUNTS.index[TRAIN]))
    build = ["build", tmp_path / "k", tmp_path / "X.csv", "--function", "linear", "--storage", "tiles"]
    build += ["--transform", "size-factor,log1p"]
    assert "taken from all" not in notes_of(*build, "--train", tmp_path / "train.txt")
    Z = transformed(["size-factor", "log1p"])
    np.testing.assert_allclose(np.asarray(dmkl.open(tmp_path / "k"))[0], Z @ Z.T, atol=1e-5)
    assert "linear of X: size-factor,log1p" in " ".join(output_of("info", tmp_path / "k").split())


WIDE = pd.DataFrame(np.random.default_rng(1).poisson(2.0, (60, 30)) * 1.0, columns=[f"g{k}" for k in range(30)])
WIDE.index = [f"c{i}" for i in range(60)]


def log_normalized(counts):
    return np.log1p(counts.div(counts.sum(axis=1), axis=0) * 1e4)


def test_logarithms_given_as_counts_are_noted_with_the_table_of_counts():
    spec = {"function": "linear", "feature": "X", "transform": ["size-factor", "log1p"]}
    with pytest.warns(FeatureWarning, match="100% of the non-zero values of 'X' are not whole .* counts in 'layer'"):
        dmkl.build(None, {"X": log_normalized(WIDE), "layer": WIDE}, spec)
    with pytest.warns(FeatureWarning, match="name a table of counts"):
        dmkl.build(None, {"X": log_normalized(WIDE)}, spec)
    dmkl.build(None, {"X": WIDE}, spec)


@pytest.mark.filterwarnings("ignore::dmkl.errors.ApproximationWarning")
@pytest.mark.parametrize(
    "spec",
    [
        {"function": "linear"},
        {"function": "rbf", "transform": "log1p"},
        {"function": "cosine", "transform": "tfidf"},
        {"function": "rbf", "transform": ("size-factor", "log1p")},
        {"function": "rbf", "rank": 8, "approximation": "nystroem"},
        {"function": "rbf", "rank": 8, "approximation": "fourier"},
    ],
)
def test_new_features_on_another_scale_are_noted(spec, tmp_path):
    K = dmkl.build(tmp_path / "k", {"X": WIDE[:40]}, spec)
    assert not problems(tmp_path / "k")
    new = WIDE[40:]
    dmkl.build_cross(K, {"X": new})
    with pytest.warns(FeatureWarning, match=r"another scale than in training: 0% .* whole numbers \(100% in training"):
        dmkl.build_cross(K, {"X": log_normalized(new)})
    with pytest.warns(FeatureWarning, match=r"mean \|x\| is"):
        dmkl.build_cross(K, {"X": new * 100})
    if "transform" not in spec:
        with pytest.warns(FeatureWarning, match=r"are negative \(0% in training"):
            dmkl.build_cross(K, {"X": new - new.mean()})


def test_sets_without_scales_are_read():
    K = dmkl.build(None, {"X": WIDE[:40]}, {"function": "linear", "transform": "log1p"})
    del K.view.source.recipes[0].made["transform"]["scale"]
    dmkl.build_cross(K, {"X": log_normalized(WIDE[40:])})
