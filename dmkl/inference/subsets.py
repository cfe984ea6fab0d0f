"""A search over all kernels and, in the same spaces, the same folds refitted with some of the kernels alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import xarray as xr
from sklearn.base import clone

from dmkl.arrays import Index
from dmkl.estimators.engine import run
from dmkl.estimators.plan import Answers, Fit, FitOutcome, Plan
from dmkl.numerics.fisher import Targets
from dmkl.searching.choice import Choice, Rule
from dmkl.searching.dataset import as_dataset
from dmkl.searching.fits import Question, as_grid_fits, grid_fits
from dmkl.searching.refit import of_all_tasks
from dmkl.searching.result import SearchResult
from dmkl.solvers.workspace import Workspace

__all__ = ["Found", "Refits", "Subset"]

Subset = tuple[int, ...]
"""Positions of the kernels that may have weight, ascending."""


@dataclass(frozen=True, eq=False)
class Found:
    """What became of each set of kernels.

    Parameters
    ----------
    everything
        Of all kernels at the chosen point: score, gap, objective, status over fold[, task], weight over fold, kernel[,
        task], and the parameters.
    subsets
        The same of some of the kernels.
    n_fits, n_passes, n_search_passes
        Problems that were solved; passes, and those among them that the search took, where it had to end first.
    """

    everything: xr.Dataset
    subsets: dict[Subset, xr.Dataset]
    n_fits: int
    n_passes: float
    n_search_passes: float


@dataclass(frozen=True, eq=False)
class _Case:
    """Points at which subsets are fitted on every fold, and the folds that read their results from it."""

    question: Question
    folds: Index


@dataclass(frozen=True, eq=False)
class Refits:
    """What is fitted.

    Parameters
    ----------
    question
        The search over all kernels.
    rule, choice
        How it chooses.
    subsets
        The kernels that may have weight, of each further set of fits.
    """

    question: Question
    rule: Rule
    choice: Choice
    subsets: Sequence[Subset]

    def run(self, workspace: Workspace, *, held: bool) -> Found:
        """Run everything; `held` at the point that the search has chosen, otherwise at every point, to choose anew.

        Rows for subsets stand behind those of the search in one plan, which goes on from where the search has ended.
        """
        searched = grid_fits(self.question)
        targets = [fit.targets for fit in searched[:: len(self.question.models)]]
        folds, n_search_passes = np.arange(len(targets)), 0.0
        cases = [_Case(self.question, folds)]
        if held and len(self.question.models) > 1:
            answers = run(Plan(self.question.K, searched, duals=False), workspace)
            n_search_passes = answers.tally.n_passes
            cases = list(self._held(self._search(answers)))
        rows = [fit for subset in self.subsets for case in cases for fit in _rows(case, targets, subset)]
        answers = run(Plan(self.question.K, [*searched, *rows], duals=False), workspace)
        following = iter(answers.fits)
        base = _ordered(self._search(_next(following, len(searched), answers)).chosen)
        found = {}
        for subset in self.subsets:
            parts = []
            for case in cases:
                mine = _next(following, len(case.question.models) * len(targets), answers)
                parts.append(self._read(case.question, mine).isel(fold=case.folds))
            whole = xr.concat(parts, "fold", data_vars="all") if len(parts) > 1 else parts[0]
            found[subset] = whole.sel(fold=base["fold"].values)
        n_fits = sum(len(fit.outcomes) for fit in answers.fits)
        return Found(base, found, n_fits, answers.tally.n_passes, n_search_passes)

    def _search(self, answers: Answers) -> SearchResult:
        grid = as_grid_fits(self.question, answers)
        return SearchResult(as_dataset(self.question, grid, self.choice, 0.0), rule=self.rule)

    def _read(self, question: Question, answers: Answers) -> xr.Dataset:
        """Scores and solutions at the chosen point, over fold[, task]."""
        scores = as_dataset(question, as_grid_fits(question, answers), self.choice, 0.0)
        return _ordered(SearchResult(scores, rule=self.rule).chosen if question.grid else scores)

    def _held(self, result: SearchResult) -> Iterator[_Case]:
        """The chosen point as a learner with these parameters; one for each that several folds have chosen.

        Folds that choose are decided on by rows of one another, so each learner is fitted on all of them. Where classes
        choose a parameter each for itself, it is the one value that all of them had in the search.
        """
        index, question = xr.Dataset(result.best_index_), self.question
        n_folds = len(question.folds)
        by_fold: dict[tuple[tuple[int, ...], ...], list[int]] = {}
        for f in range(n_folds):
            own = index.isel(fold=f) if "fold" in index.dims else index
            places = tuple(tuple(map(int, np.ravel(own[name].values))) for name in question.grid)
            by_fold.setdefault(places, []).append(f)
        for places, folds in by_fold.items():
            named = zip(question.grid.items(), places, strict=True)
            params = {name: of_all_tasks(name, [values[k] for k in own]) for (name, values), own in named}
            model = clone(question.estimator).set_params(**params)
            yield _Case(replace(question, estimator=model, grid={}), np.array(folds))


def _rows(case: _Case, targets: Sequence[Targets], subset: Subset) -> list[Fit]:
    return grid_fits(case.question, targets, np.array(subset, dtype=np.int64))


def _next(following: Iterator[FitOutcome], n: int, answers: Answers) -> Answers:
    """The answers to the next rows of a plan, with what all of it took."""
    return Answers(list(islice(following, n)), answers.tally)


def _ordered(found: xr.Dataset) -> xr.Dataset:
    return found.transpose("fold", "kernel", ...)
