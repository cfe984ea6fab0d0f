"""The picture of confusions: its counts, and recall and precision beside them."""

import numpy as np
import pytest
import xarray as xr
from sklearn.metrics import precision_score, recall_score

import dmkl
from dmkl.errors import InputError
from dmkl.searching.assessing import confusion

RNG = np.random.default_rng(0)
CLASSES = np.array(["ant", "bee", "cat", "dog"])
TRUTH = CLASSES[RNG.integers(4, size=80)]
GUESSED = np.where(RNG.random(80) < 0.7, TRUTH, CLASSES[RNG.integers(3, size=80)])


def points(ax):
    return {line.get_label(): line.get_xydata() for line in ax.lines}


def words(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


def test_counts_with_recall_and_precision_of_each_class():
    matrix, scores = dmkl.plot_confusion(confusion(TRUTH, GUESSED, CLASSES))
    matrix.figure.canvas.draw()
    counts = np.array([[np.sum((TRUTH == a) & (GUESSED == b)) for b in CLASSES] for a in CLASSES])
    np.testing.assert_array_equal(matrix.images[0].get_array(), counts)
    assert [text.get_text() for text in matrix.texts] == [str(count) for count in counts.ravel()]
    assert words(matrix.xaxis) == words(matrix.yaxis) == CLASSES.tolist()
    assert (matrix.get_xlabel(), matrix.get_ylabel()) == ("predicted class", "true class")
    assert scores.get_ylim()[0] > scores.get_ylim()[1]  # its rows are those of the matrix
    for name, score in (("recall", recall_score), ("precision", precision_score)):
        expected = score(TRUTH, GUESSED, labels=CLASSES, average=None)
        np.testing.assert_allclose(points(scores)[name], np.stack([expected, np.arange(4)], axis=1))


def test_many_classes_have_colors_alone():
    labels = np.arange(30)
    (matrix, *_) = dmkl.plot_confusion(confusion(labels, np.roll(labels, 1), labels))
    assert not matrix.texts
    np.testing.assert_array_equal(matrix.images[0].get_array(), np.roll(np.eye(30), -1, axis=1))


def test_tasks_have_recall_and_precision_without_a_matrix():
    truth, guessed = RNG.integers(2, size=(40, 3)), RNG.integers(2, size=(40, 3))
    scores = dmkl.plot_confusion(confusion(truth, guessed, [0, 1], np.array(["bird", "boat", "bus"])))
    scores.figure.canvas.draw()
    assert words(scores.yaxis) == ["bird", "boat", "bus"]
    np.testing.assert_allclose(points(scores)["recall"][:, 0], recall_score(truth, guessed, average=None))


@pytest.mark.parametrize("result", [xr.Dataset({"score": ("measure", [0.5])}), xr.DataArray([1, 2], dims="class"), 3])
def test_what_has_no_counts_is_refused(result):
    with pytest.raises(InputError, match=r"drawn from the result of dmkl\.assess for classes"):
        dmkl.plot_confusion(result)


def test_of_a_model_and_of_an_evaluation():
    X = RNG.normal(size=(45, 3)) + 2 * (np.arange(45)[:, None] % 3)
    K = dmkl.create(None, [X @ X.T], labels=np.arange(45) % 3)
    measured = dmkl.assess(dmkl.MKFDA(lam=0.1).fit(K[:30, :30]), K[30:, :30])
    evaluated = dmkl.evaluate(dmkl.MKFDA(), K, grid={"lam": [0.1]}, outer=2, inner=2, baselines="none")
    pictures = dmkl.plot_confusion(measured), evaluated.plot_confusion()
    for (matrix, _), counts in zip(pictures, (measured["confusion"], evaluated.confusion), strict=True):
        np.testing.assert_array_equal(matrix.images[0].get_array(), counts)
    assert evaluated.confusion.sum() == 45
