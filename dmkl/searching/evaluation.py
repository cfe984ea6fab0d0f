"""What a nested cross-validation found: scores and choices by outer fold, the inner searches, saving."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import xarray as xr

from dmkl.arrays import Index
from dmkl.errors import InputError, StoreError
from dmkl.estimators.saving import READERS, read
from dmkl.searching.beside import TITLES, baselines_told
from dmkl.searching.confusion import class_scores
from dmkl.searching.labeled import described, folds_of, read_dataset, values_of
from dmkl.searching.means import chance_told, mean_and_error, task_dim, tasks_of
from dmkl.searching.result import SearchResult
from dmkl.searching.texts import bandwidth_notes, count, edge_notes, value_told, with_error
from dmkl.solvers.outcome import WORDS
from dmkl.store.groups import consolidate
from dmkl.store.saved import Saved, check_version, replace_group, write_dataset
from dmkl.variables import describe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["EvaluationResult"]

FORMAT, FORMAT_VERSION = "dmkl-evaluation", 1
_NEEDED = ("test_score", "inner_score", "weight", "gap", "status")


class EvaluationResult:
    """What a nested cross-validation found.

    Made by `dmkl.evaluate` and by `dmkl.load`.

    Parameters
    ----------
    scores
        A Dataset with the dimension "fold" for the outer folds:

        ====================== ================================ ========================================================
        test_score[_NAME]      fold[, task]                     on the test rows, which no choice has seen, of the model
                                                                fitted anew on all training rows at the chosen point; by
                                                                the deciding measure and by others
        inner_score            fold[, task]                     mean validation score of the inner folds at that point
        name of a parameter    fold[, task]                     its chosen value
        confusion              fold[, task], true, predicted    test rows of a class that were predicted as another
        weight                 fold, kernel[, task]             β of the model that was tested
        gap, objective, status fold[, task]                     of that model, as in `SearchResult.scores`
        n_train, n_test        fold                             rows
        part                   fold, sample                     0 train, 2 test, -1 none; see `folds`
        sample_group           sample                           the groups that no fold splits, where there were some
        constant_score         fold[, task]                     of one decision for all test rows
        sum_test_score[_NAME], fold[, task]                     of the plain sum of the kernels, evaluated beside it, at
        sum_inner_score,                                        what the inner folds chose for it; see `baselines`
        sum_gap, sum_lam …
        ====================== ================================ ========================================================

        Attributes: those of `SearchResult.scores`, measures (JSON list), n_refit_passes (those among n_passes that the
        fits at the chosen points took).
    searches
        By outer fold what its inner folds found, without a model: a `SearchResult` each, with scores, weights, gaps and
        statuses of every point. Their passes are those that all of them shared.

    Raises
    ------
    InputError
        If `scores` lacks something of the above, or has other folds than `searches`.
    """

    def __init__(self, scores: xr.Dataset, searches: Mapping[str, SearchResult]) -> None:
        missing = [name for name in _NEEDED if name not in scores]
        names = scores["fold"].values.tolist() if "fold" in scores else []
        if missing or names != list(searches):
            msg = (
                f"scores must have {', '.join(_NEEDED)} over the folds of searches, {', '.join(searches)}, found "
                f"{', '.join(map(str, scores.data_vars)) or 'nothing'} over {', '.join(names) or 'no folds'}; "
                "dmkl.evaluate and dmkl.load make such"
            )
            raise InputError(msg)
        self._scores = described(scores.copy())
        self._searches = dict(searches)

    # --- what was found ----------------------------------------------------------------------------------------------

    @property
    def scores(self) -> xr.Dataset:
        """Scores, choices and weights by outer fold."""
        return self._scores

    @property
    def searches(self) -> dict[str, SearchResult]:
        """What the inner folds found, by outer fold."""
        return dict(self._searches)

    @property
    def folds(self) -> dict[str, tuple[Index, ...]]:
        """The outer folds that were used, by name: rows of `scores.sample` as (train, test).

        As `outer` of `dmkl.evaluate` they give the same folds again. `searches` have the inner ones.

        Raises
        ------
        InputError
            If an older version of dmkl made this result, which did not keep them.
        """
        return folds_of(self._scores)

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the parameters that were chosen, in the order of the grid."""
        return tuple(json.loads(self._scores.attrs["parameters_searched"]))

    @property
    def measures(self) -> tuple[str, ...]:
        """Names of the measures, the deciding one first."""
        return tuple(json.loads(self._scores.attrs["measures"]))

    @property
    def tasks(self) -> tuple[str, ...] | None:
        """Names of the tasks of a multilabel problem, or of the targets of a regression of several; None otherwise."""
        return tasks_of(self._scores)

    @property
    def n_passes_(self) -> float:
        """Passes over the stored kernels that all of it took."""
        return float(self._scores.attrs["n_passes"])

    @property
    def mean_score_(self) -> Any:
        """Mean test score over the outer folds where it is defined; over task for a multilabel problem."""
        return self._mean("test_score")[0]

    @property
    def standard_error_(self) -> Any:
        """Its standard error s/√n over the outer folds, which takes them for independent (see `dmkl.evaluate`)."""
        return self._mean("test_score")[1]

    def _mean(self, name: str) -> tuple[Any, Any]:
        mean, error = mean_and_error(self._scores[name])
        return (float(mean), float(error)) if self.tasks is None else (mean, error)

    @property
    def choices(self) -> pd.DataFrame:
        """The spread of the choices: how many outer folds chose each point, the most frequent first.

        Returns
        -------
        DataFrame
            The parameters and "folds"; for a multilabel problem the tasks of the folds are counted.
        """
        values = {name: values_of(self._scores[name]) for name in self.parameters}
        chosen = pd.DataFrame(values, dtype=object)
        return chosen.value_counts(dropna=False).rename("folds").reset_index()

    @property
    def baselines(self) -> xr.Dataset | None:
        """What is to be beaten: the plain sum of the kernels, chosen and tested on the same rows.

        Returns
        -------
        Dataset
            test_score, inner_score, gap, objective and the chosen parameters over baseline, fold and task, as
            in `scores`. None where the evaluation ran without, or the learner has no plain sum.
        """
        own = {name: str(name).removeprefix("sum_") for name in self._scores.data_vars if str(name).startswith("sum_")}
        if not own:
            return None
        return describe(
            self._scores[list(own)].rename(own).drop_attrs(deep=False).expand_dims(baseline=[TITLES["sum"]])
        )

    def beside(self) -> list[str]:
        """A sentence for each of the `baselines`: how good it is in test, and whether the estimator is better."""
        baselines = self.baselines
        return [] if baselines is None else baselines_told(self._scores, baselines, self.parameters)

    @property
    def confusion(self) -> xr.DataArray:
        """Test rows of each true class by the class that was predicted, of all outer folds together.

        Raises
        ------
        InputError
            If it was a regression.
        """
        if "confusion" not in self._scores:
            msg = "a regression predicts numbers, which no confusion matrix counts; its measures are in scores"
            raise InputError(msg)
        return self._scores["confusion"].sum("fold", keep_attrs=True)

    @property
    def classes(self) -> xr.Dataset:
        """Recall, precision and support of each class on the test rows of all outer folds together."""
        return class_scores(self.confusion)

    def plot_confusion(self) -> Figure:
        """Draw which classes are taken for which, all outer folds together; see `dmkl.plot_confusion`."""
        from dmkl.searching.confusion_plot import plot_confusion

        return plot_confusion(self.confusion)

    # --- as text and tables ------------------------------------------------------------------------------------------

    def table(self) -> pd.DataFrame:
        """The outer folds in their order.

        Returns
        -------
        DataFrame
            fold, task (of a multilabel problem), the chosen parameters, inner_score, each measure on the test rows by
            its name, gap and status of the model that was tested.
        """
        scores, dim = self._scores, task_dim(self._scores)
        by = ["fold"] if dim is None else ["fold", dim]
        names = {f"test_score{'' if k == 0 else f'_{name}'}": name for k, name in enumerate(self.measures)}
        values = scores[["inner_score", *names, "gap"]].rename(names)
        frame = values.to_dataframe(dim_order=by).reset_index()
        for place, name in enumerate(self.parameters):
            frame.insert(len(by) + place, name, values_of(scores[name]))
        frame["status"] = np.array(WORDS)[scores["status"].values.ravel()]
        return frame[[*by, *self.parameters, "inner_score", *self.measures, "gap", "status"]]

    def summary(self) -> str:
        """A few lines: what was evaluated, how good it is, what was chosen, what it took."""
        scores, attrs = self._scores, self._scores.attrs
        first = next(iter(self._searches.values())).scores
        grid = " × ".join(f"{first.sizes[name]} {name}" for name in self.parameters)
        inner = sorted({search.scores.sizes["fold"] for search in self._searches.values()})
        folds = f"{count(scores.sizes['fold'], 'outer fold')} × {' or '.join(map(str, inner))} inner"
        tasks = "" if self.tasks is None else f", {len(self.tasks)} {task_dim(scores)}s"
        lines = [f"Evaluation of {attrs['estimator']}: {grid}, {folds}{tasks}"]
        for k, name in enumerate(self.measures):
            score = scores[f"test_score{'' if k == 0 else f'_{name}'}"]
            over_tasks = score.mean([dim for dim in score.dims if dim != "fold"])
            told = "in test, on rows that no choice has seen" if k == 0 else "in test"
            lines.append(f"{name} {with_error(*mean_and_error(over_tasks))} {told}")
        lines += chance_told(scores["test_score"], scores, "test")
        lines += self.beside()
        lines.append(f"{attrs['scoring']} {float(scores['inner_score'].mean()):.4g} in the folds that chose")
        lines.append(f"Chosen: {self._choices_told()}")
        lines += [attrs["hint"]] if "hint" in attrs else []
        lines += self.notes()
        gap = float(max(search.scores["gap"].max() for search in self._searches.values()))
        fits = sum(int((search.scores["status"] >= 0).sum()) for search in self._searches.values())
        proven = f" (largest gap {gap:.1e})" if np.isfinite(gap) else ""
        took = f"{count(self.n_passes_, 'pass')}, {attrs['seconds']:.3g} s"
        lines.append(f"{fits} fits{proven} and {count(scores.sizes['fold'], 'refit')} in {took}")
        return "\n".join(lines)

    def notes(self) -> list[str]:
        """What to know of the scores: choices at an end of the grid of λ or C, bandwidths set by held-out samples."""
        grid = next(iter(self._searches.values())).grid
        chosen = {name: self._scores[name].values.ravel().tolist() for name in self.parameters}
        return [*edge_notes(grid, chosen), *bandwidth_notes(self._scores.attrs)]

    def _choices_told(self) -> str:
        """Of each parameter its values and how often each was chosen, the most frequent first."""
        told = []
        for name in self.parameters:
            counts = pd.Series(values_of(self._scores[name]), dtype=object).value_counts(dropna=False)
            told.append(f"{name} = {', '.join(f'{value_told(value)} ({n}×)' for value, n in counts.items())}")
        return "; ".join(told)

    def __repr__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        lines = "<br>".join(map(html.escape, self.summary().split("\n")))
        return f"<div>{lines}</div>{self._scores._repr_html_()}"

    # --- saving ------------------------------------------------------------------------------------------------------

    def save(self, path: Any, *, overwrite: bool = False) -> None:
        """Write the result as a Zarr group with JSON attributes, each inner search as its subgroup: no pickle.

        `dmkl.load` reads it, and ``xarray.open_zarr`` its scores.

        Raises
        ------
        StoreExistsError
            If something is at `path` and `overwrite` was not given, or it is no evaluation.
        """
        replace_group(path, self._write, FORMAT, "evaluation", overwrite=overwrite)

    def _write(self, path: Path) -> None:
        for number, search in enumerate(self._searches.values()):
            search.write(path / _search(number))
        own = {"format": FORMAT, "format_version": FORMAT_VERSION}
        write_dataset(self._scores.assign_attrs(own), path, "a", None)
        consolidate(path)


def _search(number: int) -> str:
    """The subgroup of the inner search of an outer fold."""
    return f"search-{number}"


def _read_evaluation(saved: Saved) -> EvaluationResult:
    check_version(saved, FORMAT_VERSION, "evaluation")
    try:
        scores = read_dataset(saved)
        for name in ("format", "format_version"):
            scores.attrs.pop(name)
        names = scores["fold"].values.tolist()
        return EvaluationResult(scores, {name: read(saved.part(_search(number))) for number, name in enumerate(names)})
    except (OSError, KeyError, ValueError, TypeError, RuntimeError) as error:
        msg = f"the evaluation at {saved.place} is damaged ({error!r}); save it again"
        raise StoreError(msg) from error


READERS[FORMAT] = _read_evaluation
