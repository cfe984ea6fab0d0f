"""Labels and weights of samples are matched by name wherever both have names, and masked entries are missing."""

import copy

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from sklearn.svm import SVC

import dmkl
from dmkl.errors import InputError

M, TRAIN, TEST = 60, np.arange(0, 60, 2), np.arange(1, 60, 2)
SAMPLES = np.array([f"s{i}" for i in range(M)])
rng = np.random.default_rng(0)
CLASSES = pd.Series(np.arange(M) % 4 // 2, index=SAMPLES)
TABLES = {name: pd.DataFrame(rng.normal(size=(M, 4)) + CLASSES.to_numpy()[:, None], SAMPLES) for name in "ab"}
TARGETS = pd.DataFrame({"x": TABLES["a"][0] + 1, "y": -2 * TABLES["b"][1]}).set_axis(SAMPLES)
WEIGHTS = pd.Series(rng.integers(1, 9, size=M), index=SAMPLES)
TIMES = pd.Series(dmkl.signed_times(rng.exponential(size=M), rng.random(M) < 0.8), index=SAMPLES)
SHUFFLED = rng.permutation(TEST)
NEW = {name: table.iloc[TEST] for name, table in TABLES.items()}


def kernels(rows):
    made = {name: table.to_numpy()[rows] @ table.to_numpy()[TRAIN].T for name, table in TABLES.items()}
    return {f"{name}-linear": pd.DataFrame(K, SAMPLES[rows], SAMPLES[TRAIN]) for name, K in made.items()}


@pytest.fixture(scope="module")
def K():
    return dmkl.build(None, {name: table.iloc[TRAIN] for name, table in TABLES.items()}, {"function": "linear"})


@pytest.fixture(scope="module")
def models(K):
    learners = {"classes": dmkl.MKFDA(), "numbers": dmkl.MKRidge(), "times": dmkl.MKCox()}
    labels = {"classes": CLASSES, "numbers": TARGETS, "times": TIMES}
    fitted = {name: learner.fit(K, labels[name].iloc[TRAIN]) for name, learner in learners.items()}
    return fitted | {"clusters": dmkl.KernelKMeans(2).fit(K)}


QUESTIONS = {
    "score of kernels in memory": lambda m, at: m["classes"].score(kernels(TEST), CLASSES.iloc[at]),
    "score of features": lambda m, at: m["classes"].score(features=NEW, y=CLASSES.iloc[at]),
    "score with weights": lambda m, at: m["classes"].score(kernels(TEST), CLASSES.iloc[TEST], WEIGHTS.iloc[at]),
    "assess": lambda m, at: dmkl.assess(m["classes"], features=NEW, y=CLASSES.iloc[at])["confusion"],
    "assess targets": lambda m, at: dmkl.assess(m["numbers"], features=NEW, y=TARGETS.iloc[at])["score"],
    "calibrate": lambda m, at: (
        copy.deepcopy(m["classes"]).calibrate(features=NEW, y=CLASSES.iloc[at]).predict_proba(features=NEW)
    ),
    "agreement of clusters": lambda m, at: list(
        dmkl.cluster_agreement(m["clusters"].labels_, CLASSES.iloc[at - 1]).values()
    ),
    "parts of R²": lambda m, at: dmkl.kernel_scores(m["numbers"].contributions(features=NEW), TARGETS.iloc[at]).data[
        "kernel_r2"
    ],
    "survival": lambda m, at: dmkl.survival_scores(
        m["times"].predict_survival(features=NEW, times=[0.2, 0.5, 1.0]), TIMES.iloc[at]
    )["brier_score"],
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_the_order_of_named_labels_does_not_matter(name, models):
    ask = QUESTIONS[name]
    expected = np.asarray(ask(models, TEST))
    assert_allclose(np.asarray(ask(models, SHUFFLED)), expected, rtol=1e-12)


def test_the_order_of_named_weights_does_not_matter(K):
    first, second = (dmkl.MKRidge().fit(K, TARGETS["x"].iloc[TRAIN], WEIGHTS.iloc[at]) for at in (TRAIN, SHUFFLED - 1))
    assert_allclose(second.dual_coef_, first.dual_coef_, rtol=1e-12)


def test_columns_of_targets_are_matched_by_name(models):
    turned, ridge = TARGETS[["y", "x"]].iloc[TEST], models["numbers"]
    assert ridge.score(features=NEW, y=turned) == pytest.approx(ridge.score(features=NEW, y=TARGETS.iloc[TEST]))
    parts = [dmkl.kernel_scores(ridge.contributions(features=NEW), y).data for y in (turned, TARGETS.iloc[TEST])]
    assert_allclose(*[part["kernel_r2"] for part in parts])


def masked(values, at=3):
    return np.ma.masked_array(values, mask=np.arange(np.size(values)).reshape(np.shape(values)) == at)


GRAM = TABLES["a"].to_numpy() @ TABLES["a"].to_numpy().T
NUMBERS = TARGETS["x"].to_numpy()
REFUSED = [
    (lambda: dmkl.MKFDA().fit([masked(GRAM)], CLASSES.to_numpy()), r"entry \(0, 3\) is nan"),
    (lambda: dmkl.MKFDA().fit(np.ma.stack([GRAM, masked(GRAM)]), CLASSES.to_numpy()), r"entry \(0, 3\) is nan"),
    (lambda: dmkl.build(None, {"a": masked(TABLES["a"].to_numpy(), 5)}, {"function": "linear"}), "nan in column 1"),
    (lambda: dmkl.MKFDA().fit([GRAM], masked(CLASSES.to_numpy())), "1 labels that are missing"),
    (lambda: dmkl.MKFDA().fit([GRAM], masked(CLASSES.to_numpy().astype(str))), "1 labels that are missing"),
    (lambda: dmkl.MKRidge().fit([GRAM], masked(NUMBERS)), "1 labels that are missing"),
    (lambda: dmkl.MKRidge().fit([GRAM], NUMBERS, masked(np.ones(M))), "sample_weight must be 0 or more"),
    (lambda: dmkl.MKRidge().fit([GRAM], NUMBERS).predict([GRAM[:, :9]]), "found 60 × 9 .* expected 60 columns"),
    (lambda: dmkl.MKRidge().fit([GRAM[:9, :9]], NUMBERS[:9]).predict([GRAM[:9]]), "found 9 × 60 .* transposed"),
    (lambda: dmkl.MKRidge().fit([GRAM], NUMBERS).score([GRAM[:9]], NUMBERS), "60 labels, and there are 9 samples"),
    (lambda: dmkl.search(dmkl.MKFDA, [GRAM], NUMBERS), "takes a learner .* got the class MKFDA"),
    (lambda: dmkl.evaluate(SVC(), [GRAM], NUMBERS), "takes a learner .* got a SVC"),
    (lambda: dmkl.compare({"svc": SVC()}, [GRAM], CLASSES.to_numpy()), r"no model SVC\(\); models are"),
    (lambda: dmkl.stability(SVC(), [GRAM], NUMBERS), "takes a learner .* got a SVC"),
    (lambda: dmkl.importance(SVC(), [GRAM], NUMBERS), "takes a learner .* got a SVC"),
    (lambda: dmkl.permutation_test(SVC(), [GRAM], NUMBERS), "takes a learner .* got a SVC"),
]


@pytest.mark.parametrize(("call", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_what_is_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()


KERNELS = ("a-linear", "b-linear")
BY_NAME = pd.Series({"b-linear": 0.3, "a-linear": 1.0})
OF_TARGETS = pd.DataFrame({"x": [0.5, 0.2], "y": [0.3, 1.0]}, index=["b-linear", "a-linear"])
PAIRS = [
    (dmkl.MKRidge(weights=BY_NAME), dmkl.MKRidge(weights=[1.0, 0.3])),
    (dmkl.MKRidge(weights=OF_TARGETS), dmkl.MKRidge(weights=[[0.2, 1.0], [0.5, 0.3]])),
    (dmkl.MKRidge(1.0, sigma=BY_NAME), dmkl.MKRidge(1.0, sigma=[1.0, 0.3])),
    (dmkl.MKFDA(priors=pd.Series({1: 0.9, 0: 0.1})), dmkl.MKFDA(priors=[0.1, 0.9])),
    (dmkl.MKFDA(class_weight=pd.Series({1: 5, 0: 1})), dmkl.MKFDA(class_weight={0: 1, 1: 5})),
]


@pytest.mark.parametrize(("named", "in_order"), PAIRS, ids=lambda learner: repr(learner)[:40])
def test_series_of_parameters_are_matched_by_name(named, in_order, K, tmp_path):
    y = (CLASSES if isinstance(named, dmkl.MKFDA) else TARGETS).iloc[TRAIN]
    first, second = named.fit(K, y), in_order.fit(K, y)
    assert_allclose(first.weights_, second.weights_, rtol=1e-12)
    assert_allclose(first.dual_coef_, second.dual_coef_, rtol=1e-12)
    first.save(tmp_path / "model.zarr")
    loaded = dmkl.load(tmp_path / "model.zarr")
    assert (loaded.predict(features=NEW) == second.predict(features=NEW)).all()
    assert_allclose(loaded.fit(K, y).weights_, second.weights_, rtol=1e-12)


@pytest.mark.parametrize(
    ("learner", "message"),
    [
        (dmkl.MKRidge(weights=OF_TARGETS[["y", "x"]]), "in the order of y: x, y"),
        (
            dmkl.MKRidge(kernel_groups=pd.Series({"b-linear": "g", "a-linear": "h"})),
            "groups to names of kernels.*groupby",
        ),
    ],
)
def test_names_in_another_order_are_refused(learner, message, K):
    with pytest.raises(InputError, match=message):
        learner.fit(K, TARGETS.iloc[TRAIN])


def test_masks_of_samples_are_matched_by_name(K):
    chosen = CLASSES.iloc[TRAIN].sample(frac=1, random_state=0) == 1
    assert K[chosen, chosen].samples.tolist() == SAMPLES[TRAIN][CLASSES.iloc[TRAIN] == 1].tolist()
    of_training = {name: table.iloc[TRAIN] for name, table in TABLES.items()}
    masks = chosen, CLASSES.iloc[TRAIN].to_numpy() == 1, np.ones(len(TRAIN), bool)
    made = [dmkl.build(None, of_training, {"function": "rbf"}, train=mask).provenance for mask in masks]
    assert made[0] == made[1] != made[2]


def test_events_are_matched_to_times_by_name():
    time, event = TIMES.abs(), TIMES > 0
    assert_allclose(dmkl.signed_times(time, event.sample(frac=1, random_state=0)), TIMES)
