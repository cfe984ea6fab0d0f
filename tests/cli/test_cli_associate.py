"""`dmkl associate` beside `dmkl.association_test`."""

import numpy as np
import pandas as pd
import pytest
from helpers.stand_ins import AGES, kernels

import dmkl


@pytest.fixture
def store(tmp_path):
    kernels(tmp_path / "set.zarr")
    AGES.to_csv(tmp_path / "covariates.csv", index_label="sample")
    return tmp_path / "set.zarr"


def test_tables_pictures_and_results_are_those_of_python(store, output_of, json_of, tmp_path):
    options = ("--covariates", tmp_path / "covariates.csv", "--permutations", "9")
    saved, picture = tmp_path / "result", tmp_path / "p.png"
    printed = output_of("associate", store, *options, "--output", saved, "--plot", picture)
    expected = dmkl.association_test(dmkl.open(store), covariates=pd.DataFrame(AGES), n_permutations=9)
    assert expected.describe().headline in printed
    assert picture.stat().st_size > 1000
    np.testing.assert_allclose(dmkl.load(saved).data["p_value"], expected.data["p_value"], rtol=1e-12)
    rows = json_of("associate", store, *options)["kernels"]
    assert [row["kernel"] for row in rows] == expected.table()["kernel"].tolist()
    output_of("report", saved, "-o", tmp_path / "page.html")
    assert "Associated kernels" in (tmp_path / "page.html").read_text()


def test_samples_and_families_are_chosen(store, json_of, error_of):
    K = dmkl.open(store)
    train = K.split(0).train
    rows = json_of("associate", store, "--split", "0", "--known-variance")["kernels"]
    expected = dmkl.association_test(K[train, train], small_sample=False).table()
    np.testing.assert_allclose([row["p_value"] for row in rows], expected["p_value"], rtol=1e-12)
    assert "survival takes numbers" in error_of("associate", store, "--family", "cox")
    assert "numbers or two classes" in error_of("associate", store, "--family", "gaussian")
