"""Figures of out-of-fold predictions and of confusions, against scikit-learn."""

import numpy as np
import pytest
import sklearn.metrics as skm
import xarray as xr
from matplotlib.figure import Figure
from sklearn.calibration import calibration_curve

import dmkl
from dmkl.errors import InputError
from dmkl.numerics.survival import log_rank
from dmkl.searching.assessing import confusion

N = 60
SITES, FOLDS = np.array(["A", "B", "C"])[np.arange(N) % 3], np.arange(N) % 2


def predictions(kind):
    """Synthetic predictions of two folds and three sites."""
    rng = np.random.default_rng(0)
    coords = {"sample": [f"s{i}" for i in range(N)]}
    rows = {"sample_fold": ("sample", FOLDS.astype(str)), "sample_group": ("sample", SITES)}
    if kind == "regression":
        y = rng.standard_normal(N)
        f = y + 0.3 * rng.standard_normal(N)
        return xr.Dataset(rows | {"true_label": ("sample", y), "prediction": ("sample", f)}, coords)
    names = np.array(["x/y", "b", "c"][: 2 if kind == "binary" else 3])
    P, truth = rng.dirichlet(np.ones(len(names)), N), names[rng.integers(len(names), size=N)]
    rows |= {"true_label": ("sample", truth), "predicted_label": ("sample", names[P.argmax(axis=1)])}
    score = ("sample", P[:, 1]) if kind == "binary" else (("sample", "class"), P)
    return xr.Dataset(rows | {"score": score, "probability": (("sample", "class"), P)}, coords | {"class": names})


@pytest.mark.parametrize("kind", ["roc", "precision_recall"])
def test_curves_are_means_over_folds_with_bands_and_scikit_learns_areas(kind):
    data, ax = predictions("multiclass"), Figure().subplots()
    assert dmkl.plot_predictions(data, kind, ax) is ax
    area = {"roc": skm.roc_auc_score, "precision_recall": skm.average_precision_score}[kind]
    drawn = [line for line in ax.lines if ": " in line.get_label() or " ± " in line.get_label()]
    assert len(drawn) == len(ax.collections) == 3
    for line, name in zip(drawn, data["class"].values, strict=True):
        t, p = (data["true_label"] == name).values, data["probability"].sel({"class": name}).values
        areas = [area(t[f == FOLDS], p[f == FOLDS]) for f in range(2)]
        assert line.get_label().endswith(f"{np.mean(areas):.3f} ± {np.std(areas, ddof=1):.2g}")
        if kind == "roc":
            assert np.trapezoid(line.get_ydata(), line.get_xdata()) == pytest.approx(np.mean(areas), abs=0.02)
    bands = np.concatenate([band.get_paths()[0].vertices[:, 1] for band in ax.collections])
    assert 0.0 <= bands.min() <= bands.max() <= 1.0


def test_scores_of_two_classes_have_curves_without_probabilities():
    rng = np.random.default_rng(0)
    y = np.array(["no", "yes"])[np.arange(N) % 2]
    X = rng.normal(size=(N, 3)) + 0.8 * (y == "yes")[:, None]
    result = dmkl.evaluate(dmkl.MKSVM(), (X @ X.T)[None], y, {"C": [1.0]}, outer=2, inner=2, scoring="roc_auc")
    (line,) = dmkl.plot_predictions(result).lines[:1]
    mean = float(result.scores["test_score"].mean())
    assert line.get_label().startswith(f"yes, AUC {mean:.3f} ± ")
    assert list(dmkl.prediction_table(result.predictions)) == ["sample", "fold", "true", "predicted", "score yes"]


def test_survival_is_that_of_groups_by_risk_within_folds():
    """The p-value is that of scikit-survival 0.28, `compare_survival`."""
    y = dmkl.signed_times([2, 3, 3, 5, 6, 6, 8, 9, 11, 12], [1, 1, 0, 0, 1, 1, 0, 1, 1, 0])
    group, shift = np.array([2, 1, 1, 2, 2, 0, 1, 0, 0, 0]), np.where(np.arange(10) == 9, 9.0, 0.0)
    rows = {"true_label": y, "prediction": group + shift, "sample_fold": np.where(shift > 0, "b", "a")}
    data = xr.Dataset({name: ("sample", values) for name, values in rows.items()})
    lowest = dmkl.plot_survival(data.isel(sample=slice(9))).lines[0]  # of 6, 9 and 11, all events
    np.testing.assert_allclose(lowest.get_ydata(), [1, 2 / 3, 1 / 3, 0], atol=1e-12)
    np.testing.assert_array_equal(lowest.get_xdata(), [0, 6, 9, 11])
    # The only row of its fold is in the middle group.
    groups = np.append(group[:9], 1)
    assert f"p = {log_rank(y, groups):.2g}" in dmkl.plot_survival(data).figure.get_suptitle()
    assert log_rank(y, group) == pytest.approx(0.28957153165160077)
    with pytest.raises(InputError, match="two groups or more of predicted risks"):
        dmkl.plot_survival(predictions("binary"))


def test_calibration_confusion_and_numbers():
    data = predictions("binary")
    line = dmkl.plot_predictions(data, "calibration").lines[0]
    shares, means = calibration_curve(data["true_label"] == "b", data["probability"].values[:, 1], n_bins=10)
    np.testing.assert_allclose(line.get_xydata(), np.stack([means, shares], axis=1))
    counts = [int(text.get_text()) for text in dmkl.plot_predictions(data, "confusion").texts]
    expected = skm.confusion_matrix(data["true_label"], data["predicted_label"])
    np.testing.assert_array_equal(counts, expected.ravel())
    data = predictions("regression")
    ax = dmkl.plot_predictions(data, "observed", by="group")
    assert len(ax.lines) == 4
    site = data.isel(sample=SITES == "A")
    assert ax.lines[0].get_label() == f"A: R² {skm.r2_score(site['true_label'], site['prediction']):.3f}"
    with pytest.raises(InputError, match="draws score"):
        dmkl.plot_predictions(data, "roc")


RNG = np.random.default_rng(0)
CLASSES = np.array(["ant", "bee", "cat", "dog"])
TRUTH, GUESSED = CLASSES[RNG.integers(4, size=(2, 80))]


def points(ax):
    return {line.get_label(): line.get_xydata() for line in ax.lines}


def words(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


def test_counts_with_recall_and_precision_of_each_class():
    matrix, scores = dmkl.plot_confusion(confusion(TRUTH, GUESSED, CLASSES))
    matrix.figure.canvas.draw()
    counts = skm.confusion_matrix(TRUTH, GUESSED, labels=CLASSES)
    np.testing.assert_array_equal(matrix.images[0].get_array(), counts)
    assert [text.get_text() for text in matrix.texts] == [str(count) for count in counts.ravel()]
    assert words(matrix.xaxis) == words(matrix.yaxis) == CLASSES.tolist()
    assert (matrix.get_xlabel(), matrix.get_ylabel()) == ("predicted class", "true class")
    assert scores.get_ylim()[0] > scores.get_ylim()[1]  # the same row order as the matrix
    for name, score in (("recall", skm.recall_score), ("precision", skm.precision_score)):
        expected = score(TRUTH, GUESSED, labels=CLASSES, average=None)
        np.testing.assert_allclose(points(scores)[name], np.stack([expected, np.arange(4)], axis=1))
    many, *_ = dmkl.plot_confusion(confusion(np.arange(30), np.arange(30), np.arange(30)))
    assert not many.texts


def test_tasks_have_recall_and_precision_without_a_matrix():
    truth, guessed = RNG.integers(2, size=(40, 3)), RNG.integers(2, size=(40, 3))
    scores = dmkl.plot_confusion(confusion(truth, guessed, [0, 1], np.array(["bird", "boat", "bus"])))
    scores.figure.canvas.draw()
    assert words(scores.yaxis) == ["bird", "boat", "bus"]
    np.testing.assert_allclose(points(scores)["recall"][:, 0], skm.recall_score(truth, guessed, average=None))
    with pytest.raises(InputError, match=r"drawn from the result of dmkl\.assess for classes"):
        dmkl.plot_confusion(xr.Dataset({"score": ("measure", [0.5])}))
