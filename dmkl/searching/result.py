"""What a search found: scores of every point and fold, the choice, the refitted model, saving."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import pandas as pd
import xarray as xr

from dmkl.arrays import Index
from dmkl.errors import InputError, StoreError
from dmkl.estimators.checks import check_choice
from dmkl.estimators.learner import KernelLearner
from dmkl.estimators.saving import READERS, read, write_model
from dmkl.searching.beside import baselines_of, baselines_told
from dmkl.searching.choice import Rule
from dmkl.searching.grid import LAM_TRACE
from dmkl.searching.labeled import by_fold, completed, folds_of, nested, read_dataset, values_of
from dmkl.searching.means import best_index, chance_told, class_values, mean_and_error, task_dim, tasks_of
from dmkl.searching.texts import bandwidth_notes, count, edge_notes, told, with_error
from dmkl.solvers.outcome import WORDS
from dmkl.store.groups import consolidate
from dmkl.store.saved import Saved, check_version, replace_group, write_dataset

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["SearchResult"]

FORMAT, FORMAT_VERSION = "dmkl-search", 2
BEST = "best"
"""The subgroup of the refitted model."""
NOT_FITTED = "not fitted"
MOST_LINES = 10
"""Choices that a summary lists."""


class _NoModel(InputError, AttributeError):
    """So that hasattr(result, "best_") tells whether there is one."""


class SearchResult:
    """What a search over a grid of parameters found.

    Made by `dmkl.search` and by `dmkl.load`; everything it knows is in `scores`, a Dataset.

    Parameters
    ----------
    scores
        One dimension for each parameter of the grid by its name, "fold", "kernel", "task" ("target" of a regression)
        and "round" (one for each pass of the search). With P for the parameters' dimensions:

        ============================ ======================= =========================================================
        score, score_NAME            P, fold[, task]         on the validation rows, by the deciding measure and by
                                                             others
        test_score, test_score_NAME  P, fold[, task]         on the test rows, where folds have any
        mean_score, standard_error   P[, fold][, task]       of `score` over the folds that choose together, where it
                                                             is defined; added if not there
        class_score                  P, fold, class          average precision of each class against the rest,
                                                             validation rows, where classes choose a parameter
        weight                       P, fold, kernel[, task] β
        gap, objective               P, fold[, task]         proven relative gap (NaN where nothing is proven), and
                                                             objective
        status                       P, fold[, task]         0 certified, 1 finished, 2 converged, 3 open; −1 where a
                                                             point was not fitted: chains of steps have values of λ of
                                                             their own, and all else is NaN there
        refit_test_score[_NAME]      fold[, task]            of the point that the fold has chosen, or that all have,
                                                             fitted anew on training and validation rows
        sum_score, alone_score,      [kernel,] lam …, fold   of the plain sum of the kernels and of each kernel alone,
        sum_test_score, sum_gap …                            which are fitted beside the search; see `baselines`
        svm_score, svm_test_score …  C, fold                 of the support vector machine on the sum, if fitted
        ``round_…``                  round                   kind, seconds, bytes, basis, certified, worst_gap of a
                                                             pass
        phase_seconds                phase                   where the time went (`dmkl.progress.PHASES`)
        part                         fold, sample            0 train, 1 validation, 2 test, -1 none; see `folds`
        sample_group                 sample                  the groups that no fold splits, where there were some
        constant_score               fold[, task]            of one decision for all rows, on the test rows where there
                                                             are any; not where a callable measures
        ============================ ======================= =========================================================

        Attributes: estimator, parameters (JSON), scoring, kind, choice ("fold" or "joint"; joint where it lacks),
        parameters_searched (JSON list of P in order), parameters_by_class (of those that each class chooses), n_passes,
        seconds, n_points, solver, created_by; n_baseline_passes, those that baselines took after the search; hint, what
        may do better, where there is something; splitter (the text of scikit-learn's, "splits" for stored ones, "" for
        given rows) and asked (JSON: whether labels were given, where groups were from, scoring, unknown); svm_left_out,
        why there is no SVM; bandwidths_from_all_samples, kernels whose bandwidth all samples gave.
    best
        The model fitted with the chosen parameters; None where there is none.
    rule
        How the point is chosen, "best" or "one_standard_error"; see `dmkl.searching.choice.choose`. The folds choose
        together or each for itself, as the attribute choice says; the tasks of a multilabel problem each for itself.

    Raises
    ------
    InputError
        If the rule is none of these, or `scores` lacks something of the above.
    """

    def __init__(self, scores: xr.Dataset, *, best: KernelLearner | None = None, rule: Rule = "best") -> None:
        check_choice("rule", rule, get_args(Rule))
        self._scores = completed(scores)
        self._best = best
        self._rule: Rule = rule

    # --- what was found ------------------------------------------------------------------------------------------

    @property
    def scores(self) -> xr.Dataset:
        """Scores, weights, gaps of every point and fold, and what each pass took."""
        return self._scores

    @property
    def rule(self) -> Rule:
        """How the point was chosen."""
        return self._rule

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the parameters searched, in the order of the grid."""
        return tuple(json.loads(self._scores.attrs["parameters_searched"]))

    @property
    def grid(self) -> dict[str, list[Any]]:
        """Values of each parameter searched."""
        return {name: values_of(self._scores[name]) for name in self.parameters}

    @property
    def grid_asked(self) -> dict[str, list[Any] | None]:
        """The grid for `dmkl.search` to do the same: lam is None where each chain of steps has values of its own.

        Where the values of λ for unit trace were given for all chains, and some were not resolved, it is all of them.
        """
        found: dict[str, list[Any] | None] = dict(self.grid)
        if "lam" in found and bool((self._scores["status"] < 0).any()):
            found["lam"] = list(LAM_TRACE) if set(self.grid["lam"]) <= set(LAM_TRACE) else None
        return found

    @property
    def folds(self) -> dict[str, tuple[Index, ...]]:
        """The folds that were used, by name: rows of `scores.sample` as (train, validation) or with test rows behind.

        As `cv` of `dmkl.search` they give the same folds again.

        Raises
        ------
        InputError
            If an older version of dmkl made this result, which did not keep them.
        """
        return folds_of(self._scores)

    @property
    def tasks(self) -> tuple[str, ...] | None:
        """Names of the tasks of a multilabel problem, or of the targets of a regression of several; None otherwise."""
        return tasks_of(self._scores)

    @property
    def choosers(self) -> tuple[str, ...]:
        """Dimensions along which each chooses for itself: "fold", "task" (or "target"), both or none."""
        dim = task_dim(self._scores)
        return (*(("fold",) if by_fold(self._scores) else ()), *(() if dim is None else (dim,)))

    @property
    def by_class(self) -> tuple[str, ...]:
        """Names of the parameters that each class chooses for itself; see `best_params_`."""
        return tuple(json.loads(self._scores.attrs.get("parameters_by_class", "[]")))

    @property
    def n_passes_(self) -> float:
        """Passes over the stored kernels that the search took; a part of one counts by the tiles that it read."""
        return float(self._scores.attrs["n_passes"])

    @property
    def best_(self) -> KernelLearner:
        """The model fitted with the chosen parameters.

        On the training and validation rows of the first fold where folds have test rows or choose each for itself, on
        all rows of the folds otherwise.

        Raises
        ------
        InputError
            If there is none; it is an AttributeError too.
        """
        if self._best is None:
            msg = (
                "this search has no fitted model, since it ran with refit=False; search with refit=True, or fit an "
                "estimator with best_params_"
            )
            raise _NoModel(msg)
        return self._best

    # --- the choice ----------------------------------------------------------------------------------------------

    @property
    def best_index_(self) -> dict[str, xr.DataArray]:
        """Position of the chosen value of each parameter, over the `choosers`; ``scores.isel(best_index_)``."""
        return self._index(self._rule)

    @property
    def chosen(self) -> xr.Dataset:
        """What is known of the chosen point: `scores` at `best_index_`, over fold and task where each has its own."""
        return self._scores.isel(self.best_index_)

    @property
    def best_params_(self) -> dict[str, Any]:
        """Chosen value of each parameter; by fold and by task where each chooses for itself.

        Of a parameter in `by_class` it is a mapping from classes to values. The point with one value for all classes is
        chosen as ever, and its other parameters are kept; then each class takes the value at which `class_score`, the
        average precision of its own scores against the rest on the validation rows, is largest. These are fits in which
        all classes had the same value, and `best_score_`, `chosen` and `test_score` are of one value for all: how good
        the mapping is, tells the refitted model alone, by `refit_test_score`.
        """
        return self.choose(self._rule)

    @property
    def best_score_(self) -> Any:
        """Mean validation score of the chosen point; by fold and by task where each chooses for itself."""
        mean = self._scores["mean_score"].isel(self.best_index_)
        return nested(mean.to_dataset(name="mean"), self.choosers, lambda one: float(one["mean"]))

    @property
    def baselines(self) -> xr.Dataset | None:
        """What is to be beaten: the plain sum of the kernels, and, where it was asked for, the best single kernel.

        Each takes the parameters that do not concern weights (λ, C, the steps …), and the kernel, by its own validation
        scores, under the same rule and by the same choosers as the search: no row that is tested on chooses. Of more
        than ten kernels the five to which the search gives most weight, at its smallest p, are tried alone. The plain
        sum has weight one for each kernel, the same loss and the same solver: it is the Fisher discriminant, kernel
        ridge regression or the support vector machine on the sum.

        Returns
        -------
        Dataset
            score, test_score (where folds have test rows), gap, objective over baseline, fold and task, as in `scores`;
            the chosen parameters, and best_kernel (empty for the sum), over baseline and the `choosers`. None where
            the search ran without. Beside a discriminant the support vector machine on the sum is there too, with C.
        """
        return baselines_of(self._scores, self._rule, self.choosers)

    def choose(self, rule: Rule) -> dict[str, Any]:
        """`best_params_` under another rule.

        Parameters
        ----------
        rule
            "best" or "one_standard_error"; see `dmkl.searching.choice.choose`.

        Raises
        ------
        InputError
            If the rule is none of these, or no point can be chosen.
        """
        grid, index = self.grid, xr.Dataset(self._index(rule))
        by_class, one_each = self.by_class, "fold" in self.choosers

        def values_at(at: xr.Dataset) -> dict[str, Any]:
            """Values of whoever chooses at these positions."""
            own = self._scores.sel(fold=at["fold"].item()) if one_each else self._scores
            places = {name: int(at[name]) for name in self.parameters}
            return {
                name: class_values(own, places, name, grid[name], rule) if name in by_class else grid[name][place]
                for name, place in places.items()
            }

        params: dict[str, Any] = nested(index, self.choosers, values_at)
        return params

    def _index(self, rule: Rule) -> dict[str, xr.DataArray]:
        check_choice("rule", rule, get_args(Rule))
        return best_index(self._scores, self.parameters, self.choosers, rule)

    # --- as text and tables --------------------------------------------------------------------------------------

    def table(self) -> pd.DataFrame:
        """The points of the grid, best mean score first.

        Returns
        -------
        DataFrame
            The parameters, mean_score, standard_error, gap (the largest of the folds that choose together) and status
            (the worst). Where folds or tasks choose each for itself, the points of each, one after the other.
        """
        scores, by = self._scores, list(self.choosers)
        dims, worst = [*by, *self.parameters], self._worst("status")
        values = scores[["mean_score", "standard_error"]].assign(
            gap=self._worst("gap"), status=worst.copy(data=np.array([*WORDS, NOT_FITTED])[worst.values])
        )
        frame = values.to_dataframe(dim_order=dims).reset_index()[[*dims, *values.data_vars]]
        frame = frame.loc[frame["status"] != NOT_FITTED]
        frame = frame.sort_values("mean_score", ascending=False, kind="stable")
        for dim in reversed(by):
            frame[dim] = pd.Categorical(frame[dim], scores[dim].values.tolist())
            frame = frame.sort_values(dim, kind="stable")
        return frame.astype(dict.fromkeys(by, object)).reset_index(drop=True)

    def _worst(self, name: str) -> xr.DataArray:
        """The largest value over the folds that choose together."""
        values = self._scores[name]
        return values if "fold" in self.choosers else values.max("fold")

    def summary(self) -> str:
        """A few lines: what was searched, what was chosen, how good it is, what it took."""
        scores, attrs = self._scores, self._scores.attrs
        grid = " × ".join(f"{scores.sizes[name]} {name}" for name in self.parameters)
        tasks = "" if self.tasks is None else f", {len(self.tasks)} {task_dim(scores)}s"
        lines = [f"Search of {attrs['estimator']}: {grid}, {count(scores.sizes['fold'], 'fold')}{tasks}"]
        try:
            lines += self._chosen_lines()
            rows = "test" if "test_score" in scores else "validation"
            lines += chance_told(self.chosen["test_score" if rows == "test" else "score"], scores, rows)
            lines += [*self.beside(), *self.notes()]
        except InputError as error:
            lines.append(str(error))
        lines += [attrs["hint"]] if "hint" in attrs else []
        status = scores["status"].values
        counts = np.bincount(status[status >= 0], minlength=len(WORDS))
        found = ", ".join(f"{n} {status}" for n, status in zip(counts, WORDS, strict=True) if n)
        took = f"{count(self.n_passes_, 'pass')}, {attrs['seconds']:.3g} s"
        gap = float(scores["gap"].max())
        proven = f"; largest gap {gap:.1e}" if np.isfinite(gap) else ""
        lines.append(f"{counts.sum()} fits ({found}{proven}) in {took}")
        if "phase_seconds" in scores:  # results of before have none
            phases = scores["phase_seconds"].to_series().sort_values(ascending=False)
            most = [f"{phase} {seconds:.3g} s" for phase, seconds in phases.items() if seconds >= 0.01 * phases.sum()]
            lines.append(f"Time: {', '.join(most)}")
        return "\n".join(lines)

    def beside(self) -> list[str]:
        """A sentence for each of the `baselines`: how good it is, and whether the choice does better.

        By test rows where there are any, and validation rows otherwise.

        Raises
        ------
        InputError
            If no point can be chosen.
        """
        baselines = self.baselines
        return [] if baselines is None else baselines_told(self.chosen, baselines, self.parameters)

    def notes(self) -> list[str]:
        """What to know of the scores.

        Choices at an end of the grid of λ or C, bandwidths set by held-out samples, and why a baseline is missing.

        Raises
        ------
        InputError
            If no point can be chosen.
        """
        chosen = {name: self.chosen[name].values.ravel().tolist() for name in self.parameters}
        left_out = self._scores.attrs.get("svm_left_out")
        machine = [] if left_out is None else [f"The SVM on the sum of kernels was not fitted: {left_out}"]
        return [*edge_notes(self.grid, chosen), *bandwidth_notes(self._scores.attrs), *machine]

    def _chosen_lines(self) -> list[str]:
        scoring, by = self._scores.attrs["scoring"], "" if self.rule == "best" else " (one-standard-error rule)"
        chosen, params, means = self.chosen, self.best_params_, self.best_score_
        if not self.choosers:
            lines = [f"Chosen{by}: {told(params)}"]
            mean = with_error(chosen["mean_score"], chosen["standard_error"])
            lines.append(f"{scoring} {mean} in validation{self._of_one_value}")
            return lines + self._test_lines(chosen)
        each = list(_flat(params, means, len(self.choosers)))
        lines = [f"Chosen{by} by each {' and '.join(self.choosers)}, {scoring} in validation:"]
        lines += [f"  {', '.join(labels)}: {told(one)}, {mean:.4g}" for labels, one, mean in each[:MOST_LINES]]
        if len(each) > MOST_LINES:
            lines.append(f"  … and {len(each) - MOST_LINES} more")
        if self.tasks is not None:
            over = f"mean over {' and '.join(f'{dim}s' for dim in self.choosers)}"
            return [*lines, f"{scoring} {np.nanmean([mean for *_, mean in each]):.4g} in validation, {over}"]
        mean = with_error(*mean_and_error(chosen["score"]))
        lines.append(f"{scoring} {mean} in validation, mean over folds{self._of_one_value}")
        return lines + self._test_lines(chosen)

    @property
    def _of_one_value(self) -> str:
        """What scores of the grid are of, where the classes choose for themselves."""
        return f", with one {' and '.join(self.by_class)} for all classes" if self.by_class else ""

    def _test_lines(self, chosen: xr.Dataset) -> list[str]:
        scoring = chosen.attrs["scoring"]
        where = {
            "test_score": f"in test{self._of_one_value}",
            "refit_test_score": "in test, refitted with the validation rows",
        }
        return [
            f"{scoring} {with_error(*mean_and_error(chosen[name]))} {rows}"
            for name, rows in where.items()
            if name in chosen
        ]

    def __repr__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        lines = "<br>".join(map(html.escape, self.summary().split("\n")))
        return f"<div>{lines}</div>{self._scores._repr_html_()}"

    # --- pictures ------------------------------------------------------------------------------------------------

    def plot_scores(self, ax: Axes | Sequence[Axes] | None = None, *, task: str | None = None) -> Figure:
        """Draw the mean scores over the grid; see `dmkl.searching.plots.plot_scores`."""
        from dmkl.searching.plots import plot_scores

        return plot_scores(self, ax, task=task)

    def plot_weights(self, task: str | None = None, at: Mapping[str, Any] | None = None) -> Figure:
        """Draw the kernel weights of a point; see `dmkl.searching.plots.plot_weights`."""
        from dmkl.searching.plots import plot_weights

        return plot_weights(self, task, at)

    def plot_weights_over(self, name: str = "p", task: str | None = None) -> Figure:
        """Draw the kernel weights as p (or another parameter) grows; see `dmkl.searching.plots.plot_weights_over`."""
        from dmkl.searching.plots import plot_weights_over

        return plot_weights_over(self, name, task)

    # --- saving --------------------------------------------------------------------------------------------------

    def save(self, path: Any, *, overwrite: bool = False) -> None:
        """Write the result as a Zarr group with JSON attributes, the model as its subgroup "best": no pickle.

        `dmkl.load` reads it, and ``xarray.open_zarr`` its scores.

        Raises
        ------
        StoreExistsError
            If something is at `path` and `overwrite` was not given, or it is no search.
        """
        replace_group(path, self.write, FORMAT, "search", overwrite=overwrite)

    def write(self, path: Path) -> None:
        """Write the result as a Zarr group at a path where there is none; see `save`."""
        if self._best is not None:
            write_model(self._best, path / BEST)
        own = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "rule": self._rule,
            "has_model": self._best is not None,
        }
        write_dataset(self._scores.assign_attrs(own), path, "a", None)
        consolidate(path)


def _flat(params: Any, means: Any, depth: int, labels: tuple[str, ...] = ()) -> Iterator[tuple[Any, Any, Any]]:
    """Labels, parameters and mean of each that chooses for itself, of dicts in dicts so deep."""
    if not depth:
        yield labels, params, means
        return
    for label in params:
        yield from _flat(params[label], means[label], depth - 1, (*labels, label))


# --- reading -------------------------------------------------------------------------------------------------------


def _read_search(saved: Saved) -> SearchResult:
    check_version(saved, FORMAT_VERSION, "search")
    try:
        return _read(saved)
    except (OSError, KeyError, ValueError, TypeError, RuntimeError) as error:
        msg = f"the search at {saved.place} is damaged ({error!r}); save it again"
        raise StoreError(msg) from error


def _read(saved: Saved) -> SearchResult:
    scores = read_dataset(saved)
    own = {name: scores.attrs.pop(name) for name in ("format", "format_version", "rule", "has_model")}
    best = read(saved.part(BEST)) if own["has_model"] else None
    return SearchResult(scores, best=best, rule=own["rule"])


READERS[FORMAT] = _read_search
