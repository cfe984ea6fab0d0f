"""Columns of new samples are matched with those of training by name."""

import json

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from helpers.annotated import anndata, quietly
from sklearn.metrics.pairwise import linear_kernel, rbf_kernel

import dmkl
from dmkl.errors import FeatureWarning, InputError

M, NEW, WIDTH = 30, 11, 12
GENES = [f"g{k}" for k in range(WIDTH)]
SETS = {"first": ["g0", "g3", "g4"], "second": ["g7", "g2"]}
SPECS = [
    {"function": ["linear", "polynomial", "cosine", "rbf", "laplacian", "chi2", "intersection"]},
    {"function": "proximity", "scales": 2},
    {"function": ["linear", "rbf"], "columns": SETS},
    {"function": "rbf", "rank": M, "name": "nystroem"},
]


def table(n, prefix, seed):
    values = np.random.default_rng(seed).random((n, WIDTH))
    return pd.DataFrame(values, [f"{prefix}{i}" for i in range(n)], GENES)


OLD, LATER = table(M, "old", 0), table(NEW, "new", 1)
SHUFFLED = LATER[np.random.default_rng(2).permutation(GENES)]
WIDER = pd.concat([SHUFFLED.iloc[:, :5], LATER[["g1"]].add_suffix("?") * np.nan, SHUFFLED.iloc[:, 5:]], axis=1)


@pytest.fixture(params=[True, False], ids=["stored", "computed"])
def K(request, tmp_path):
    return dmkl.build(tmp_path / "old.zarr" if request.param else None, {"genes": OLD}, SPECS, tile=8)


@pytest.mark.parametrize("new", [SHUFFLED, WIDER], ids=["another order", "more columns"])
def test_kernels_are_those_of_the_order_of_training(K, new):
    expected = np.asarray(dmkl.build_cross(K, {"genes": LATER}))
    np.testing.assert_array_equal(dmkl.build_cross(K, {"genes": new}), expected)
    by_name = dict(zip(K.names, expected, strict=True))
    np.testing.assert_allclose(by_name["genes-linear"], linear_kernel(LATER, OLD), rtol=1e-12)
    members = SETS["first"]
    np.testing.assert_allclose(by_name["genes-linear-first"], linear_kernel(LATER[members], OLD[members]), rtol=1e-12)


def test_a_missing_column_matters_only_to_kernels_that_use_it(K):
    new = SHUFFLED.drop(columns=["g0", "g11"])
    new.loc["new3", "g9"] = np.nan  # no kernel of the second set uses it
    chosen = K.select(["genes-linear-second", "genes-rbf-second"])
    expected = np.asarray(dmkl.build_cross(chosen, {"genes": LATER}))
    np.testing.assert_array_equal(dmkl.build_cross(chosen, {"genes": new}), expected)
    message = (
        r"lack 1 of the 5 columns of 'genes' that kernels use: g0; used by genes-linear-first\. .*--missing-features"
    )
    with pytest.raises(InputError, match=message):
        dmkl.build_cross(K.select(["genes-linear-first", "genes-linear-second"]), {"genes": new})
    with pytest.raises(InputError, match=r"lack 2 of the 12 columns of 'genes' that kernels use: g0, g11; .* in all\)"):
        dmkl.build_cross(K, {"genes": new})
    with pytest.raises(InputError, match="missing_features must be 'refuse', 'zero' or 'mean', got 'median'"):
        dmkl.build_cross(K, {"genes": new}, missing_features="median")


@pytest.mark.parametrize("how", ["zero", "mean"])
def test_missing_columns_are_filled_in(K, how):
    train = np.array([4, 9, 1, 20, 17])  # the mean is that of the columns of the view
    fill = 0.0 if how == "zero" else OLD["g0"].iloc[train].mean()
    with pytest.warns(
        FeatureWarning, match=r"1 of the 12 columns of 'genes' are missing and filled in by .*: g0; used"
    ):
        cross = dmkl.build_cross(K[train, train], {"genes": SHUFFLED.drop(columns="g0")}, missing_features=how)
    expected = dmkl.build_cross(K[train, train], {"genes": LATER.assign(g0=fill)})
    np.testing.assert_allclose(cross, expected, rtol=1e-12)


def test_samples_without_the_table_stay_without_it(K):
    new, same = SHUFFLED.drop(columns="g0"), LATER.copy()
    new.iloc[4] = same.iloc[4] = np.nan
    expected = np.asarray(dmkl.build_cross(K, {"genes": same}, missing="zero"))
    with pytest.warns(FeatureWarning, match="filled in"):
        filled = dmkl.build_cross(K, {"genes": new}, missing="zero", missing_features="zero")
    np.testing.assert_array_equal(np.asarray(filled)[:, 4], expected[:, 4])


def test_a_side_without_names_goes_by_position_with_a_warning(K):
    expected = np.asarray(dmkl.build_cross(K, {"genes": LATER}))
    with pytest.warns(FeatureWarning, match="'genes' are matched by position, since the new table has no names"):
        cross = dmkl.build_cross(K, {"genes": LATER.to_numpy()})
    np.testing.assert_array_equal(cross, expected)
    nameless = dmkl.build(None, {"genes": OLD.to_numpy()}, SPECS[0], tile=8)
    with pytest.warns(FeatureWarning, match="matched by position, since training had no names"):
        cross = dmkl.build_cross(nameless, {"genes": LATER})
    np.testing.assert_array_equal(cross, expected[: len(nameless)])
    # Consecutive numbers as names of a data frame are no names.
    for new in (pd.DataFrame(LATER.to_numpy()), LATER.to_numpy()):
        counted = dmkl.build(None, {"genes": pd.DataFrame(OLD.to_numpy())}, SPECS[0], tile=8)
        np.testing.assert_array_equal(dmkl.build_cross(counted, {"genes": new}), expected[: len(counted)])
    with pytest.raises(InputError, match="had 12 in training"):
        dmkl.build_cross(counted, {"genes": pd.DataFrame(WIDER.to_numpy())})


def test_repeated_names_are_refused_where_they_matter(K):
    twice = SHUFFLED.rename(columns={"g5": "g2"})
    with pytest.raises(InputError, match=r"'genes': names of columns must be unique, .* but these repeat: g2$"):
        dmkl.build_cross(K, {"genes": twice})
    chosen = K.select(["genes-linear-first"])
    expected = np.asarray(dmkl.build_cross(chosen, {"genes": LATER}))
    np.testing.assert_array_equal(dmkl.build_cross(chosen, {"genes": twice}), expected)


# --- models and annotated data ---------------------------------------------------------------------------------------
def cells(frame):
    """AnnData with the values in a layer."""
    with quietly():
        kinds = pd.DataFrame({"kind": np.where(frame["g0"] > 0.5, "a", "b")}, index=frame.index)
        data = anndata.AnnData(np.round(10 * frame.to_numpy()), kinds, pd.DataFrame(index=frame.columns))
        data.layers["lognorm"] = scipy.sparse.csr_matrix(frame.to_numpy())
    return data


@pytest.mark.slow
@pytest.mark.filterwarnings("always::dmkl.errors.FeatureWarning")
def test_a_second_file_of_cells_in_another_order_of_genes(run, error_of, output_of, tmp_path):
    old, new, sets = tmp_path / "old.h5ad", tmp_path / "new.h5ad", tmp_path / "sets.gmt"
    shuffled = cells(SHUFFLED.assign(extra=1.0))
    lost = str(shuffled.var_names[0])
    assert lost in {*SETS["first"], *SETS["second"]}
    known = np.arange(NEW) % 3 > 0
    shuffled.obs["label"] = pd.Categorical(shuffled.obs["kind"].where(known))
    with quietly():
        cells(OLD).write(old)
        shuffled.X = None
        shuffled[:, 1:].copy().write(new)  # its layer is its only matrix; a gene is missing
    sets.write_text("".join("\t".join([name, "-", *genes]) + "\n" for name, genes in SETS.items()))
    build = ["build", tmp_path / "set.zarr", old, "--function", "linear", "--function", "rbf", "--columns", sets]
    output_of(*build, "--feature", "layers/lognorm", "--labels", f"{old}:kind")
    model = dmkl.MKFDA(p=2.0).fit(dmkl.open(tmp_path / "set.zarr"))
    model.save(tmp_path / "model")
    expected = model.decision_function(features={"layers/lognorm": LATER})
    np.testing.assert_allclose(model.decision_function(features=shuffled), expected, rtol=0, atol=1e-10)
    predict = ["predict", tmp_path / "model", "--features", new, "--out", tmp_path / "p.csv"]
    assert f"lack 1 of the 5 columns of 'layers/lognorm' that kernels use: {lost};" in error_of(*predict)
    filled = {"layers/lognorm": LATER.assign(**{lost: OLD[lost].mean()})}
    status, out, err = run(*predict, "--missing-features", "mean", "--json")
    assert (status, json.loads(out)["samples"]) == (0, NEW)
    assert json.loads(out)["accuracy"] == np.mean((model.predict(features=filled) == shuffled.obs["kind"])[known])
    assert f"{NEW - known.sum()} samples without a label: predicted and not scored" in err
    scores = model.decision_function(features=filled)
    np.testing.assert_allclose(pd.read_csv(tmp_path / "p.csv").iloc[:, -1], scores, rtol=0, atol=1e-10)


def test_kernels_without_weight_need_no_columns():
    y = pd.Series(np.where(OLD["g7"] + OLD["g2"] > 1, "a", "b"), OLD.index)
    K = dmkl.build(None, {"genes": OLD}, SPECS[2], labels=y)
    model = dmkl.Weighted({name: float("second" in name) for name in K.names}, dmkl.MKFDA()).fit(K)
    expected = model.decision_function(features={"genes": LATER})
    np.testing.assert_array_equal(model.decision_function(features={"genes": SHUFFLED[SETS["second"]]}), expected)
    with pytest.raises(InputError, match=r"lack 1 of the 2 columns of 'genes' that kernels use: g2; used by .*-second"):
        model.predict(features={"genes": SHUFFLED[["g0", "g7"]]})


def test_a_text_file_alone_is_the_table(tmp_path):
    OLD.to_csv(tmp_path / "training.csv")
    SHUFFLED.to_csv(tmp_path / "later.csv")
    K = dmkl.build(None, tmp_path / "training.csv", {"function": "rbf", "gamma": 0.5})
    with pytest.warns(FeatureWarning, match="features 'later' are taken for 'training' of training"):
        cross = dmkl.build_cross(K, tmp_path / "later.csv")
    np.testing.assert_allclose(np.asarray(cross)[0], rbf_kernel(LATER, OLD, gamma=0.5), rtol=1e-10)


def test_tables_are_found_by_their_place_in_a_file():
    spec = {"function": "linear"}
    expected = linear_kernel(LATER, OLD)
    for before, after in (("X", "new/X"), ("cells/obsm/a", "obsm/a"), ("old/X", "new/X")):
        K = dmkl.build(None, {before: OLD}, spec)
        with pytest.warns(FeatureWarning, match=f"features '{after}' are taken for '{before}' of training"):
            cross = dmkl.build_cross(K, {after: SHUFFLED, "other": LATER})
        np.testing.assert_allclose(np.asarray(cross)[0], expected, rtol=1e-12)
    K = dmkl.build(None, {"old/X": OLD}, spec)
    with pytest.raises(InputError, match="which the new features lack"):  # no name shows that it is the same table
        dmkl.build_cross(K, {"new/X": SHUFFLED.to_numpy()})
    two = dmkl.build(None, {"a/X": OLD, "b/X": OLD + 1}, spec)
    built = dmkl.build(None, {"X": OLD, "a/X": OLD}, spec)
    for K, new in ((two, ["X"]), (built, ["X"]), (dmkl.build(None, {"X": OLD}, spec), ["a/X", "b/X"])):
        with pytest.raises(InputError, match="which the new features lack; they have"):
            dmkl.build_cross(K, dict.fromkeys(new, LATER))
