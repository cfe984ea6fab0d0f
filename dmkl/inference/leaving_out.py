"""`dmkl.importance`: refits without each kernel and with it alone, in the passes of a search."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import xarray as xr

from dmkl.estimators.checks import check_choice, check_count
from dmkl.estimators.learner import KernelLearner
from dmkl.inference.importance import Importance
from dmkl.inference.shapley import Orders
from dmkl.inference.sources import Sources, as_sources
from dmkl.inference.subsets import Found, Refits, Subset
from dmkl.passes.blas import one_blas_thread
from dmkl.searching.choice import Choice, Rule, as_choice
from dmkl.searching.dataset import constant_scores, fold_data
from dmkl.searching.fits import Question, ask, working
from dmkl.searching.folds import make_folds
from dmkl.searching.means import mean_and_error
from dmkl.stores import Kernels

__all__ = ["Choose", "importance"]

Choose = Literal["held", "anew"]
"""Whether the parameters of fits with fewer kernels are those of the search, or chosen again."""


@one_blas_thread
def importance(
    estimator: KernelLearner,
    K: Kernels,
    y: npt.ArrayLike | None = None,
    grid: Mapping[str, Any] | None = None,
    *,
    cv: Any = None,
    kernel_groups: Mapping[str, Sequence[str]] | None = None,
    choose: Choose = "held",
    shapley: int = 0,
    random_state: int = 0,
    scoring: Any = None,
    groups: npt.ArrayLike | None = None,
    unknown: Any = None,
    rule: Rule = "best",
    choice: Choice | None = None,
    state: str | Path | None = None,
) -> Importance:
    """Measure what each kernel, and each named group of kernels, adds.

    A grid is searched by cross-validation; then every source, a kernel or a group of them, is left out (β_j = 0 for its
    kernels) and tried alone, on the same folds. What is lost is the score of all kernels less that without the source,
    in each fold, and its mean. Fits without a kernel are further points in the spaces of the search: they take few
    passes more, or none, and are as well proven as its own.

    Parameters
    ----------
    estimator, K, y, grid, cv, scoring, groups, unknown
        As in `dmkl.search`; `groups` are of samples, which no fold may split.
    kernel_groups
        Names of kernels by the name of their group, such as all bandwidths of one feature. Two kernels that are alike
        stand in for one another, and little is lost without one of them: group them.
    choose
        "held": all fits have the parameters that the search has chosen for all kernels: what else is lost tells of the
        kernels alone. "anew": they are chosen again for each set of kernels, as whoever had those alone would do; the
        plan is as many times larger as the grid has points.
    shapley
        Orders to sample for Shapley values of the groups, and of the kernels in none; 0 for none. They divide the whole
        score among sources that stand in for one another. Of n players each order takes n − 2 fits of each fold.
    random_state
        Seed of the orders.
    rule, choice
        How the search chooses, as in `dmkl.search`; with choice="fold" each fold holds what it has chosen.
    state
        A folder that all workers see, where the fits are kept after every pass; the same call goes on from there after
        a kill, and a folder that holds other work is refused. Temporary where None.

    Returns
    -------
    Importance
        Scores, losses with standard errors, weights and gaps as labeled data; measured on the test rows of folds that
        have such, which no choice has seen, otherwise on the validation rows.

    Raises
    ------
    InputError
        If an argument breaks a rule, there are fewer than two kernels, the learner takes all kernels as they are, or
        `state` holds other work.
    IndefiniteKernelError
        If a kernel proves not to be positive semidefinite.
    WorkerLostError
        If workers died again and again.

    Notes
    -----
    Castro, Gómez, Tejada: Polynomial calculation of the Shapley value based on sampling. Computers & Operations
    Research 36 (2009), Section 3: the mean over orders π of v(those before i in π and i) − v(those before i), here with
    the score as v. Without any kernel it is that of one decision for all rows, by the shares of the classes in training
    or the mean target.

    Examples
    --------
    >>> import dmkl
    >>> K = dmkl.open("kernels.zarr")
    >>> found = dmkl.importance(dmkl.MKFDA(), K, grid={"p": [1, 2], "lam": [0.01, 0.1]}, cv=3)
    >>> found.table().head(3)  # doctest: +SKIP
    """
    started = time.monotonic()
    check_choice("rule", rule, get_args(Rule))
    check_choice("choose", choose, get_args(Choose))
    check_count("shapley", shapley, least=0)
    check_count("random_state", random_state, least=0)
    estimator._check_kernels()
    fold = partial(make_folds, cv)
    question, folds = ask(
        "importance", estimator, K, y, grid, fold, scoring=scoring, groups=groups, unknown=unknown, refit=True
    )
    choice = as_choice(choice, folds, question.K.samples)
    sources = as_sources(question.K.names, kernel_groups)
    orders = Orders.sample(sources, shapley, random_state)
    asked = {
        "the question": "importance",
        "the groups of kernels": json.dumps({name: sources.members[name] for name in sources.names}),
        "choose": choose,
        "rule and choice": f"{rule}, {choice}",
        "shapley": f"{shapley} orders of seed {random_state}",
    }
    refits = Refits(question, rule, choice, _subsets(sources, orders))
    with ExitStack() as stack:
        if state is None:  # what the search has found is gone on from, so that it is kept all the same, to the end
            state = Path(stack.enter_context(TemporaryDirectory(prefix="dmkl-"))) / "state"
        found = refits.run(stack.enter_context(working(question, state, asked)), held=choose == "held")
    of_folds = fold_data(question, question.folds)
    data = _as_dataset(question, sources, found, choose).merge(of_folds, join="exact").assign_attrs(of_folds.attrs)
    if shapley:
        data = data.assign(_shapley(question, orders, found, str(data.attrs["rows"])))
    how = {"choose": choose, "choice": choice, "n_orders": shapley, "random_state": random_state}
    return Importance(data.assign_attrs({**how, "seconds": time.monotonic() - started}))


def _subsets(sources: Sources, orders: Orders) -> list[Subset]:
    """Every set of kernels that is to be fitted, once; all kernels are not among them."""
    wanted = [sources.without(name) for name in sources.names]
    wanted += [sources.members[name] for name in sources.names]
    return list(dict.fromkeys([*wanted, *orders.coalitions()]))


# --- as labeled data -----------------------------------------------------------------------------------------------


def _as_dataset(question: Question, sources: Sources, found: Found, choose: Choose) -> xr.Dataset:
    """Everything but the Shapley values as one labeled data set."""
    whole, rows = found.everything, _rows(question)
    chosen = list(question.grid) if choose == "anew" else []
    data = _kept(question, whole, rows, list(question.grid))
    for end, subset_of in (("without", sources.without), ("alone", sources.members.__getitem__)):
        parts = [_kept(question, found.subsets[subset_of(name)], rows, chosen) for name in sources.names]
        stacked = xr.concat(parts, "source", combine_attrs="drop_conflicts")
        stacked = stacked.drop_vars("weight") if end == "alone" and choose == "held" else stacked
        data = data.assign({_named(str(name), end): values for name, values in stacked.data_vars.items()})
    data = data.assign_coords(source=np.array(sources.names, dtype=str)).assign(
        member=(("source", "kernel"), sources.table)
    )
    for end in question.name_ends:
        loss, error = mean_and_error(data[f"score{end}"] - data[f"score_without{end}"])
        # Means of equal scores in another order differ by rounding.
        data[f"loss{end}"], data[f"loss_standard_error{end}"] = loss.round(12), error.round(12)
    kept = ("estimator", "parameters", "scoring", "kind", "parameters_searched", "solver")
    data.attrs = {name: whole.attrs[name] for name in kept} | {
        "measures": json.dumps(list(question.metrics)),
        "rows": rows,
        "n_fits": found.n_fits,
        "n_passes": found.n_passes,
        "n_search_passes": found.n_search_passes,
    }
    return data


def _rows(question: Question) -> str:
    """The rows that are scored: those that no choice has seen, where there are such."""
    return "test" if any(len(fold.test) for fold in question.folds) else "validation"


def _kept(question: Question, found: xr.Dataset, rows: str, parameters: Sequence[str]) -> xr.Dataset:
    """What is told of a set of kernels, with its scores under one name whatever the rows."""
    kind = "score" if rows == "validation" else "test_score"
    names = {f"{kind}{end}": f"score{end}" for end in question.name_ends}
    known = found.reset_coords([name for name in question.grid if name in found.coords])
    result = known[[*names, "weight", "gap", "objective", "status", *parameters]].rename(names)
    for variable in result.data_vars.values():
        variable.attrs = {name: value for name, value in variable.attrs.items() if name != "long_name"}
    return result


def _named(name: str, end: str) -> str:
    """score_NAME as score_without_NAME, weight as weight_without."""
    head, _, measure = name.partition("_")
    return f"score_{end}_{measure}" if head == "score" and measure else f"{name}_{end}"


def _shapley(question: Question, orders: Orders, found: Found, rows: str) -> dict[str, Any]:
    """Shapley values by the deciding measure, with what they are the sum of."""
    kind = "score" if rows == "validation" else "test_score"
    everything = found.everything[kind]
    nothing = constant_scores(question, question.folds).reshape(everything.shape)
    marginals = orders.marginals(lambda subset: found.subsets[subset][kind].values, nothing, everything.values)
    over = ("order", "player", *map(str, everything.dims))
    by_order = xr.DataArray(marginals, dims=over, coords={"player": np.array(orders.players, dtype=str)})
    n_orders = len(orders.orders)
    spread = by_order.mean("fold").std("order", ddof=1) if n_orders > 1 else np.nan * by_order.mean(["fold", "order"])
    return {
        "shapley": by_order.mean(["order", "fold"]),
        "shapley_standard_error": spread / np.sqrt(n_orders),
        "shapley_by_fold": by_order.mean("order"),
        "score_of_nothing": (everything.dims, nothing),
    }
