"""What the commands of documented jobs have to find in the files of `stand_ins`, where the truth is known."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd

import dmkl
from helpers.stand_ins import LABELS, NAMES, NEW

SICK_OF_NEW = LABELS[: len(NEW)].set_axis(NEW)
"""Labels of new samples, of which two in turn are healthy and sick, as those of training."""


def predicted(truth, least, path="predictions.csv"):
    """A table predicts this share of known labels at least."""
    table = pd.read_csv(path, index_col="sample")["predicted"]
    assert sorted(table.index) == sorted(truth.index)
    assert (table == truth[table.index]).mean() >= least


def cells():
    predicted(SICK_OF_NEW.replace({"healthy": "B", "sick": "T"}), 0.75)
    assert dmkl.load("result").best_score_ > 0.8


def matrices():
    """The trait comes from the markers of chromosome 1; six individuals have no phenotype."""
    table = pd.read_csv("height.hsq", sep="\t", index_col="Source")["Variance"]
    assert table["V(G1)/Vp"] > 0.6 > table["V(G2)/Vp"]
    rows = pd.read_csv("predictions.csv", index_col="sample")
    assert rows.index.tolist() == [f"i{i}" for i in range(6)]
    assert (rows["standard deviation"] > 0).all()


def brains():
    """Diagnoses of subjects at sites that were not trained on."""
    assert dmkl.load("estimate").scores["test_score"].mean() > 0.65


def pictures():
    predicted(LABELS[36:], 0.75)


def encoding():
    """The first twenty voxels respond to motion, the others to the semantic space."""
    table = pd.read_csv("r2.csv")
    parts = table.pivot(index="target", columns="kernel", values="kernel_r2")
    winners = parts.idxmax(axis=1).to_numpy()
    assert np.mean(winners[:20] == parts.columns[0]) > 0.9
    assert np.mean(winners[20:] == parts.columns[1]) > 0.9
    assert table["total_r2"].mean() > 0.2


def from_r():
    predicted(SICK_OF_NEW, 0.75)
    weighted(NAMES)


def from_matlab():
    weighted([str(i) for i in range(len(NAMES))])


def weighted(names):
    """The weighted kernel, as another program reads it."""
    table = pd.read_csv("weighted.csv", index_col=0)
    assert table.index.astype(str).tolist() == table.columns.tolist() == names
    np.testing.assert_allclose(table, table.T, atol=1e-6)


def colleague():
    """The model in one file predicts as the result from which it was written."""
    predicted(SICK_OF_NEW, 0.75)
    scores = dmkl.load("result").best_.decision_function(features="new.npz")
    np.testing.assert_allclose(dmkl.load("model.zip").decision_function(features="new.npz"), scores, rtol=1e-6)


def one_more():
    assert dmkl.load("with_more").best_.kernel_names_[-1] == "more"


def object_stores():
    predicted(SICK_OF_NEW, 0.75, "s3://bucket/predictions.csv")


RESULTS: dict[str, Callable[[], None]] = {
    "Cells": cells,
    "Genotypes and relationship matrices": matrices,
    "Brain measures of several modalities": brains,
    "Pictures and their descriptors": pictures,
    "Encoding models": encoding,
    "From R and back": from_r,
    "From MATLAB and back": from_matlab,
    "A model for a colleague, who predicts in a month": colleague,
    "One kernel more, or one less": one_more,
    "Object stores": object_stores,
}
"""The check after the first block of commands under a heading. Jobs on SLURM are checked in `tests/slurm`."""
