"""Variance components of several kernels: restricted maximum likelihood, and Haseman-Elston regression."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from itertools import combinations
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
import scipy.stats
import xarray as xr

from dmkl.arrays import Array, Float, Mask
from dmkl.errors import ConvergenceWarning, MemoryBudgetError, first_names, refuse, warn
from dmkl.kernelset import Kernels, KernelSet, as_kernel_set
from dmkl.learners.checks import RULES, check_count, one_of
from dmkl.learners.learner import KernelRegressor, is_labelled
from dmkl.learners.plan import FitOutcome, Statistics, TrainingSet
from dmkl.learners.predicting import beside_features, match_kernels, places_of_training, training_kernels
from dmkl.learners.traits import labeled_table
from dmkl.numerics.covariates import Covariates, of_new
from dmkl.numerics.fisher import Targets
from dmkl.numerics.steps import as_steps
from dmkl.passes.blas import one_blas_thread
from dmkl.passes.elements import weighted_blocks
from dmkl.passes.execute import machine
from dmkl.passes.statistics import measure
from dmkl.passes.sums import direct_bytes
from dmkl.passes.view import Lens, View, has_thin_factors
from dmkl.solvers.driver import drive
from dmkl.solvers.in_memory import InMemory
from dmkl.solvers.interface import Outcome, spread, worst
from dmkl.solvers.jobs import Context, Job, Training, tell_constant
from dmkl.solvers.trait_covariances import PAIRS, TRAIT_VARIABLES, Traits, trait_covariances
from dmkl.solvers.trait_likelihood import trait_likelihood
from dmkl.solvers.variance import VarianceProblem, covariances_on_factors, explained_variances, solve_on_factors
from dmkl.variables import describe

Estimation = Literal["reml", "he"]
Traces = Literal["auto", "exact", "probes"]
Shares = Literal["auto", "variance", "diagonal"]

_UNEQUAL = 1.1  # Factor by which mean diagonals of kernels may differ from one before shares of variances mislead.
_ROUNDING = 16.0
_EXPLAINED = 1e-7  # Residuals of y on fixed effects below this share of y are rounding.
_COLLINEAR = 1e-8
"""Singular value of the design, relative to the largest, at and below which its columns are linearly dependent."""


def _factor_bytes(view: View) -> int:
    """Memory of a factor of V and of its inverse, from which traces are computed."""
    return direct_bytes(view, 1) + 8 * view.shape[1] ** 2


def _fits(view: View) -> bool:
    return _factor_bytes(view) <= machine().total_bytes


@dataclass(frozen=True)
class VarianceMethod(InMemory):
    """Solve `VarianceProblem`s, at most as many at once as factors fit in memory."""

    name: str = "reml"
    traces: str = "auto"

    def check(self, jobs: Sequence[Job]) -> None:
        """See `Method.check`."""
        needed = max(_factor_bytes(job.training.square.view) for job in jobs)
        if self.traces == "exact" and needed > machine().total_bytes and not self._on_factors(jobs):
            msg = (
                f"traces='exact' holds the covariance and its inverse in memory, {needed / 2**30:.3g} GiB, and "
                f"{machine().total_bytes / 2**30:.3g} GiB are allowed; take traces='probes', or set dmkl.memory higher"
            )
            raise MemoryBudgetError(msg)

    def solve(self, jobs: Sequence[Job], context: Context) -> list[Outcome]:
        """See `Method.solve`."""
        context.solver, solve = self.name, super().solve
        outcomes = solve_on_factors(solve, jobs, context) if self._on_factors(jobs) else solve(jobs, context)
        constant: dict[Training, Mask] = {}
        for job, outcome in zip(jobs, outcomes, strict=True):
            kernels = np.arange(job.training.n_kernels) if job.kernels is None else job.kernels
            estimated = kernels[outcome.extra.get("kernels", slice(None))]
            constant[job.training] = np.isin(np.arange(job.training.n_kernels), np.setdiff1d(kernels, estimated))
        tell_constant(constant)
        return outcomes

    def _on_factors(self, jobs: Sequence[Job]) -> bool:
        return self.traces != "probes" and all(has_thin_factors(job.training.square.view) for job in jobs)

    def _in_passes(self, jobs: Sequence[Job], context: Context, numbers: Sequence[int] | None = None) -> list[Outcome]:
        needed = max((_factor_bytes(job.training.square.view) for job in jobs), default=1)
        at_once = max(1, machine().total_bytes // needed)
        return context.drive(jobs, lambda job: job.problem(), at_once=at_once, numbers=numbers)


@dataclass(eq=False, repr=False)
class VarianceComponents(KernelRegressor):
    """Variance components: the linear mixed model with several kernels, by restricted maximum likelihood (REML).

    The model is

        y = Zb + Σ_j u_j + e,  u_j ~ N(0, σ_j²K_j),  e ~ N(0, σ_e²I).

    The variances maximize the restricted likelihood (REML), by steps with the average information, from the estimates
    of Haseman-Elston regression; b are generalized least squares. This is the model that GCTA fits by
    ``--mgrm --reml``, and the evidence maximization of a Gaussian process whose kernel is Σ_j σ_j²K_j plus noise.
    Predictions are zᵀb + Σ_j u_j, the best linear unbiased ones: kernel ridge regression with β_j = σ_j² and λ = σ_e².

    Parameters
    ----------
    method
        "reml"; or "he", Haseman-Elston regression alone, the least squares fit of yyᵀ on the kernels and the identity,
        both without fixed effects. It takes two passes and no factor. Its estimates may be negative; the weights and
        predictions take negative ones as zero. Its standard errors assume normal y; beyond 1,000 samples random vectors
        estimate them, to some ten per cent.
    steps
        The fixed effects, and preprocessing: "center" for the intercept alone, `dmkl.residualize` (Z) for the intercept
        and Z, () for none. Other steps before it are applied to the kernels, as in `MKRidge`; without them kernels keep
        their scale.
    traces
        "exact" by a factor of the covariance of y; "probes" by conjugate gradients and random vectors, with their error
        in the results; "auto" takes exact traces where a factor and an inverse fit in memory.
    n_probes
        Number of random vectors.
    tests
        Whether p-values are those of likelihood ratios, which maximizes the likelihood once more without each kernel,
        or without each covariance of two targets. Without them, with probes and with "he" they are Wald's.
    shares
        The units of shares: "variance" for σ_j²/(Σσ² + σ_e²), as GCTA's V(G)/Vp, which suits kernels whose mean
        diagonal is one; "diagonal" multiplies each σ_j² by the mean diagonal of its kernel; "auto" does so where one of
        these differs from one by more than a tenth.
    genetic_correlation
        Whether to estimate correlations between two or more targets, by kernel (`trait_covariances_`).
    prevalence
        Of a binary trait in the population, for shares on the liability scale; the share of cases among the samples
        where missing.
    tol
        Largest increase of the log-likelihood that the last quadratic model may promise.
    max_iter
        Most steps.
    random_state
        Seed of the random vectors.

    Attributes
    ----------
    weights_ : DataArray
        σ_j², over kernel; over kernel and target for several targets. Zero, with a warning, for kernels that are
        constant or that the fixed effects explain: nothing is known of their variances.
    components_ : Dataset
        Over term (the kernels, "residual", and "total", the sum of all kernels) and target: `variance`,
        `variance_share` and their standard errors `variance_se`, `variance_share_se`; `share_unit`, the factor of σ_j²
        in shares (1, or the mean diagonal); `likelihood_ratio` and `p_value` of a test of zero; `boundary`, 1 where the
        estimate is zero, for which there is no standard error;
        `variance_probe_se`, the part of the standard error that random probes add; `covariance` of the estimates, over
        term and term_2; `log_likelihood_error`, the standard error of `objective_` from random probes; for a trait with
        two values `liability_share` and `liability_share_se`.
    fixed_effects_ : Dataset
        `effect` and `effect_se` over covariate ("intercept" first; levels of a category less the first) and target.
    trait_covariances_ : Dataset
        With `genetic_correlation`, over term, target and target_2: `trait_covariance`, σ_j,st of Cov(u_js, u_jt) =
        σ_j,stK_j and Cov(e_s, e_t) = σ_e,stI, `trait_correlation`, σ_j,st/√(σ_j,ss σ_j,tt), and their standard errors.
        By "reml" they maximize the restricted likelihood of each pair of targets, among matrices that are positive
        semidefinite, with errors from its average information, NaN where a correlation is ±1; of three or more targets
        the variances are those of the last pair. By "he" they are Haseman-Elston estimates, which takes three passes
        for a pair; a correlation is not cut off at ±1, and errors are those of normal targets. NaN for kernels that
        fixed effects explain, for the residual of targets without common samples, and for correlations where the
        estimate of a variance is not positive. Errors of correlations are by the delta method. `trait_p_value` is that
        of a covariance of zero, by χ² of one degree of freedom (see `tests`; that of the total is always Wald's).
    dual_coef_ : DataArray
        Py = V⁻¹(y − Zb), over sample and target. The prediction of e is σ_e²Py.
    intercept_, covariate_effects_ : DataArray
        The fixed effects, over target, and over covariate and target.
    objective_ : float or DataArray
        The restricted log-likelihood, that of m − r orthonormal contrasts of y (GCTA leaves out constants).
    gap_ : float or DataArray
        NaN: the likelihood may have several maxima.
    status_, solver_, n_passes_, n_iter_, history_, train_samples_, kernel_names_
        As in `MKFDA`.

    Notes
    -----
    A test compares a component on the boundary: the p-value of one kernel is that of the mixture ½χ²₀ + ½χ²₁ (Self,
    Liang 1987), and that of all kernels that of Σ_k C(n, k)2⁻ⁿχ²_k, which holds for kernels of independent estimates.
    Standard errors are from the inverse of the average information, and those of shares from the delta method; they are
    conditional on the components on the boundary.

    Kernels kept as factors, with fewer columns in all than training samples, are not formed: sums of one pass give the
    same likelihood, traces and tests, and one more pass gives Py (`dmkl.solvers.variance`).

    On the liability scale a share is h²K²(1−K)²/(z²P(1−P)), with the prevalence K, the share of cases P, and the normal
    density z at the threshold (Lee, Wray, Goddard, Visscher 2011).

    Yang, Lee, Goddard, Visscher: GCTA: a tool for genome-wide complex trait analysis. AJHG 88 (2011). Gilmour,
    Thompson, Cullis: Average information REML. Biometrics 51 (1995).

    Examples
    --------
    >>> import dmkl
    >>> K = dmkl.open("kernels.zarr")
    >>> train, _, test = K.split(0)
    >>> y = K.labels.astype(float)
    >>> model = dmkl.VarianceComponents().fit(K[train, train], y[train])
    >>> shares = model.components_.variance_share
    >>> 0 <= float(shares.sel(term="total")) <= 1
    True
    >>> predicted = model.predict(K[test, train])
    """

    method: Estimation = "reml"
    _: KW_ONLY
    steps: str | Sequence[str] = "center"
    traces: Traces = "auto"
    n_probes: int = 50
    tests: bool = True
    shares: Shares = "auto"
    genetic_correlation: bool = False
    prevalence: float | None = None
    tol: float = 1e-12
    max_iter: int = 100
    random_state: int = 0

    traits = KernelRegressor.traits.but(
        learns_weights=False,  # variances are estimates with standard errors
        rules=RULES
        | {
            "method": one_of(*get_args(Estimation)),
            "traces": one_of(*get_args(Traces)),
            "shares": one_of(*get_args(Shares)),
            "n_probes": partial(check_count, least=3),
        },
        fitted={
            "components_": labeled_table("variance", "variance_share"),
            "fixed_effects_": labeled_table("effect", "effect_se"),
            "trait_covariances_": labeled_table("trait_covariance", "trait_correlation", needed=False),
        },
    )

    # --- parameters and steps ------------------------------------------------------------------------------------

    def _steps(self) -> tuple[str | Covariates, ...]:
        # The likelihood does not depend on a last projection of the kernels: its fixed effects are in the model.
        steps = as_steps(self.steps)
        return steps[:-1] if steps and _is_projection(steps[-1]) else steps

    def _with_steps(self, K: KernelSet, weights: Float | None = None) -> KernelSet:
        steps: Any = self._steps()
        return K.with_steps(steps) if steps else K

    def _needs_statistics(self, lens: Lens) -> bool:
        return False  # the solver finds the kernels that fixed effects explain

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.prevalence is not None and not 0 < self.prevalence < 1:
            refuse(f"prevalence is the share of cases in the population, between 0 and 1; got {self.prevalence!r}")
        if sum(_is_projection(step) for step in as_steps(self.steps)) > 1:
            refuse(
                "steps of VarianceComponents may have fixed effects once, by 'center' or by residualize; residualize "
                "has an intercept already, so leave 'center' out, or put all covariates into one table"
            )

    def _check_data(self, K: KernelSet, targets: Targets) -> None:
        super()._check_data(K, targets)
        if self.prevalence is not None and not all(len(np.unique(y)) == 2 for y in targets.values):
            refuse("prevalence is for traits of two values, and y has more; leave prevalence out, or give two values")
        if self.genetic_correlation and len(targets.values) < 2:
            refuse(
                "genetic_correlation compares two or more targets, and y has one; give y with a column for each, as "
                "--labels pheno.txt:height,weight, or leave genetic_correlation out"
            )

    # --- fitting -------------------------------------------------------------------------------------------------

    def _method(self) -> VarianceMethod:
        return VarianceMethod(name=self.method, traces=self.traces)

    def _problem(self, data: TrainingSet, number: int) -> VarianceProblem:
        training, rows = data.trainings[number], data.problems.labeled[number]
        title, trained = f"{training.title}{data.problems.title(number)}", data.kernels.samples
        design, names = self._design(trained if rows is None else trained[rows], trained)
        _check_design(design, names, title)
        basis, upper = np.linalg.qr(design)
        new_design, _ = self._design(data.new.samples, trained)
        y = data.problems.targets.values[number]
        problem = VarianceProblem(
            y=y,
            basis=basis,
            new_basis=np.linalg.solve(upper.T, new_design.T).T,
            names=data.names,
            title=title,
            method=self.method,
            tol=self.tol,
            max_iter=self.max_iter,
            tests=self.tests,
            exact=self.traces == "exact" or (self.traces == "auto" and _fits(training.square.view)),
            n_probes=self.n_probes,
            seed=self.random_state,
        )
        # Of y itself numbers are rounded by ε|y|, and of what is left without an intercept by ε times their spread.
        spread, left = np.linalg.norm(y - y.mean() * bool(names)), np.linalg.norm(problem.residual)
        if left <= _ROUNDING * np.finfo(float).eps * np.linalg.norm(y):
            refuse(
                f"{title}y differs from its fixed effects ({', '.join(names)}) by rounding only, {left:.2g} beside "
                f"{np.linalg.norm(y):.2g}, so that nothing is left for kernels to explain; subtract a constant from y "
                "before it is rounded, or leave out the covariate that is computed from y"
            )
        if left <= _EXPLAINED * spread:
            refuse(
                f"{title}the covariates of residualize explain y completely, so that nothing is left for kernels to "
                "explain; leave out the covariate that is computed from y"
            )
        return problem

    def _design(self, samples: Array, trained: Array, given: Any = None) -> tuple[Float, list[str]]:
        """X of samples, (samples, fixed effects), and the names of its columns.

        A category has a column for each level among the `trained` samples but the first one. `given` is of new ones.
        """
        covariates = self._covariates()
        if covariates is None:
            has_intercept = any(map(_is_projection, as_steps(self.steps)))
            return np.ones((len(samples), int(has_intercept))), ["intercept"][: int(has_intercept)]
        names, seen, kept = ["intercept", *covariates.columns], set(), [0]
        occurs = np.any(covariates.of(trained), axis=0).tolist()
        for position, name in enumerate(names[1:], 1):
            category, is_level, _ = name.partition("=")
            if is_level and not occurs[position]:
                continue
            if not is_level or category in seen:
                kept.append(position)
            seen.add(category)
        table = covariates if given is None else of_new(given, covariates, samples)
        return table.of(samples)[:, kept], [names[position] for position in kept]

    # --- results -------------------------------------------------------------------------------------------------

    def _set_attributes(self, outcome: FitOutcome) -> None:
        data, problems = outcome.data, outcome.data.problems
        dim = str(self.dual_coef_.dims[1])
        targets = self.dual_coef_[dim].values
        tables = []
        for k, (solution, rows) in enumerate(zip(outcome.outcomes, problems.labeled, strict=True)):
            trained = data.kernels.samples
            design, names = self._design(trained if rows is None else trained[rows], trained)
            inverse = np.linalg.inv(np.linalg.qr(design)[1])
            covariance = inverse @ solution.extra["effects_covariance"] @ inverse.T
            means = solution.extra.get("mean_diagonal")
            if means is None:
                means = data.trainings[k].square.diagonal().mean(axis=1)
            table = self._components(solution, means, data.positions[solution.extra["kernels"]])
            table |= self._on_liability_scale(problems.targets.values[k], table)
            of_target = xr.Dataset({name: (("term", "term_2")[: np.ndim(of)], of) for name, of in table.items()})
            of_target["effect"] = "covariate", inverse @ solution.extra["effects"]
            of_target["effect_se"] = "covariate", np.sqrt(covariance.diagonal())
            tables.append(of_target)
        terms = np.array([*self.kernel_names_, "residual", "total"], dtype=str)
        coords = {"term": terms, "term_2": terms, "covariate": np.array(names, dtype=str), dim: targets}
        whole = xr.concat(tables, dim, data_vars="all").transpose(..., dim).assign_coords(coords)
        effect = whole["effect"]
        self.intercept_ = effect[:1].sum("covariate").rename("intercept")  # zero without fixed effects
        if self._covariates() is not None:
            self.covariate_effects_ = effect[1:].rename("covariate_effect")
        if problems.dim is None:
            whole = whole.isel({dim: 0}, drop=True)
        self.components_, self.fixed_effects_ = whole.drop_dims("covariate"), whole[["effect", "effect_se"]]
        if self.genetic_correlation:
            self._set_trait_covariances(outcome)
        boundary = np.argwhere(self.components_.boundary.values.reshape(len(terms), -1)[:-1])
        of_label = [f" of {label}" if problems.dim else "" for label in targets]
        at_zero = [repr(str(terms[j])) + of_label[k] for j, k in boundary]
        if at_zero:
            self.status_ += f" On the boundary, zero: {', '.join(at_zero)}."
        status = outcome.outcomes[worst(outcome.outcomes)].status
        if status.word == "open":
            message = f"VarianceComponents ended before its log-likelihood was at a maximum: {status.advice}"
            warn(message, ConvergenceWarning)

    def _set_trait_covariances(self, outcome: FitOutcome) -> None:
        data, labeled = outcome.data, outcome.data.problems.labeled
        m, n, targets = len(data.kernels.samples), len(self.kernel_names_), self.dual_coef_.target.values
        known, residuals = np.zeros((2, m, len(targets)))
        bases, estimated = [], []
        for t, (rows, solution) in enumerate(zip(labeled, outcome.outcomes, strict=True)):
            problem, at = self._problem(data, t), np.arange(m) if rows is None else rows
            known[at, t], residuals[at, t] = 1.0, problem.residual[:, 0]
            bases.append(spread(problem.basis, at, m))
            estimated.append(data.positions[solution.extra["kernels"]])
        exact = None if self.traces == "auto" else self.traces == "exact"
        lens, pairs, solvers = self._with_steps(data.kernels).lens(), [*combinations(range(len(targets)), 2)], []
        for s, t in pairs:
            of_pair = residuals[:, [s, t]], known[:, [s, t]], [bases[s], bases[t]]
            kernels = np.intersect1d(estimated[s], estimated[t])
            both = Traits(*of_pair, kernels, n, self.n_probes, self.random_state)
            likelihood = partial(trait_likelihood, tol=self.tol, max_iter=self.max_iter, tests=self.tests, exact=exact)
            solvers.append((lens, (trait_covariances if self.method == "he" else likelihood)(both)))
        results, n_passes = drive(solvers, at_once=1)
        for status in {result.status for result in results if result.status.word == "open"}:
            warn(f"the likelihood of two traits ended before its maximum: {status.advice}", ConvergenceWarning)
        self.n_passes_ += n_passes
        values = np.full((len(TRAIT_VARIABLES), n + 2, len(targets), len(targets)), np.nan)
        for pair, result in zip(pairs, results, strict=True):
            for place, (s, t) in enumerate(PAIRS):
                values[:, :, pair[s], pair[t]] = values[:, :, pair[t], pair[s]] = result.by_term()[:, :, place]
        dims = {"term": self.components_.term.values, "target": targets, "target_2": targets}
        variables = {name: (tuple(dims), array) for name, array in zip(TRAIT_VARIABLES, values, strict=True)}
        self.trait_covariances_ = xr.Dataset(variables, dims)

    def _components(self, solution: Outcome, diagonal: Float, kernels: Array) -> dict[str, Any]:
        """The variables of `components_` of one target.

        `diagonal` has the mean diagonal of each kernel, and `kernels` the positions of those with an estimate.
        """
        n, extra = len(diagonal), solution.extra
        at = np.append(kernels, n)
        variances, statistics = np.zeros(n + 1), np.full(n + 1, np.nan)
        covariance, noise = np.full((2, n + 1, n + 1), np.nan)
        variances[at], statistics[at] = extra["variances"], extra["statistics"]
        covariance[np.ix_(at, at)], noise[np.ix_(at, at)] = extra["covariance"], extra["probe_covariance"]
        # Rows of `sums` give the variances and the sum over kernels; those of `slopes` the derivatives of shares.
        sums = np.vstack([np.eye(n + 1), np.append(np.ones(n), 0.0)])
        far = kernels[np.argmax(np.abs(np.log(np.maximum(diagonal[kernels], 1e-300))))]
        is_near_one = 1 / _UNEQUAL <= diagonal[far] <= _UNEQUAL
        by_diagonal = self.shares == "diagonal" or (self.shares == "auto" and not is_near_one)
        units = np.append(diagonal if by_diagonal else np.ones(n), 1.0)
        scaled = units * variances
        total = scaled.sum()
        slopes = sums @ (np.diag(units) * total - np.outer(scaled, units)) / total**2
        boundary = np.isnan(covariance.diagonal())
        boundary = np.append(boundary, boundary[:n].all())

        def spread(forms: Float, matrix: Float) -> Float:
            products = forms @ np.nan_to_num(matrix) @ forms.T
            products[boundary] = products[:, boundary] = np.nan
            return products

        def errors(products: Float) -> Float:
            return np.sqrt(np.maximum(products.diagonal(), 0.0))

        values, covariances = sums @ variances, spread(sums, covariance)
        ratios = np.append(statistics[:n], [np.nan, statistics[n]])
        return {
            "variance": values,
            "variance_se": errors(covariances),
            "variance_probe_se": errors(spread(sums, noise)),
            "variance_share": sums @ scaled / total,
            "variance_share_se": errors(spread(slopes, covariance)),
            "share_unit": np.append(units, np.nan),
            "likelihood_ratio": ratios,
            "p_value": _p_values(ratios, values / errors(covariances), boundary, len(kernels)),
            "boundary": boundary.astype(np.int64),
            "covariance": covariances,
            "log_likelihood_error": extra["log_likelihood_error"],
        }

    def _on_liability_scale(self, y: Float, table: dict[str, Any]) -> dict[str, Any]:
        """Shares of the kernels on the liability scale, if y has two values."""
        values = np.unique(y)
        if len(values) != 2:
            return {}
        cases = float(np.mean(y == values[1]))
        prevalence = cases if self.prevalence is None else self.prevalence
        density = scipy.stats.norm.pdf(scipy.stats.norm.isf(prevalence))
        factor = (prevalence * (1 - prevalence) / density) ** 2 / (cases * (1 - cases))
        is_kernel = np.append(np.ones(len(table["variance"]) - 2, dtype=bool), [False, True])
        return {
            f"liability_share{end}": np.where(is_kernel, factor * table[f"variance_share{end}"], np.nan)
            for end in ("", "_se")
        }

    def hsq_table(self, target: str | None = None) -> pd.DataFrame:
        """The estimates as GCTA writes them in a file .hsq: columns Source, Variance and SE.

        V(G) of one kernel, V(G1), V(G2) … of several, in the order of `components_`; V(e); their sum Vp; shares
        V(G)/Vp, and V(G)/Vp_L on the liability scale; by REML the log-likelihood with and without all kernels (logL,
        logL0, without GCTA's constants), their test (LRT, df, Pval), and the number n of samples. Variances are those
        of kernels of mean diagonal one where shares are (`share_unit`).

        Raises
        ------
        InputError
            If there are several targets and `target` is none of them.
        """
        self._check_fitted()
        table, names, k = self.components_, self.components_.coords.get("target"), 0
        objective = np.reshape(self.objective_, -1)
        if names is not None:
            if target not in names.values.astype(str):
                refuse(f"the model has several targets; name one of {first_names(names.values)}, got {target!r}")
            k = names.values.astype(str).tolist().index(str(target))
            table = table.isel(target=k)
        *kernels, _, _ = table.term.values
        units = np.append(table.share_unit.values[:-2], 1.0)
        covariance = np.nan_to_num(table.covariance.values[:-1, :-1])
        titles = [f"V(G{j})" for j in range(1, len(kernels) + 1)] if len(kernels) > 1 else ["V(G)"]
        variances, errors = (units * table[f"variance{end}"].values[:-1] for end in ("", "_se"))
        rows = [*zip([*titles, "V(e)"], variances, errors, strict=True)]
        rows.append(("Vp", variances.sum(), np.sqrt(units @ covariance @ units)))
        shares = [f"{title}/Vp" for title in titles]
        shares += ["Sum of V(G)/Vp"] * (len(kernels) > 1)
        at = [*range(len(kernels)), *([-1] if len(kernels) > 1 else [])]
        for kind, end in (("variance", ""), ("liability", "_L")):
            if f"{kind}_share" in table and table[f"{kind}_share"].notnull().any():
                values, deviations = (table[f"{kind}_share{part}"].values[at] for part in ("", "_se"))
                rows += zip([f"{share}{end}" for share in shares], values, deviations, strict=True)
        ratio = float(table.likelihood_ratio[-1])
        if np.isfinite(ratio):
            likelihood = {"logL": objective[k], "logL0": objective[k] - ratio / 2, "LRT": ratio, "df": len(kernels)}
            likelihood["Pval"] = float(table.p_value[-1])
            rows += [(name, value, None) for name, value in likelihood.items()]
        part = next(part for part in self.statistics_ if k in np.atleast_1d(part.columns))
        rows.append(("n", len(self.train_samples_ if part.rows is None else part.rows), None))
        return pd.DataFrame(rows, columns=["Source", "Variance", "SE"])

    # --- predictions ---------------------------------------------------------------------------------------------

    def _trained_steps(self, part: Statistics, used: Array, samples: Array, covariates: Any) -> list[Any]:
        # Covariates that are fixed effects are no step of the kernels.
        kept = any(isinstance(step, Covariates) for step in self._steps()) or self._covariates() is None
        return super()._trained_steps(part, used, samples, covariates if kept else None)

    def _offsets(self, samples: Array, *, covariates: Any = None, **more: Any) -> Float:
        if self._covariates() is None:
            return np.zeros(1)
        design, _ = self._design(samples, self.train_samples_, covariates)
        return np.asarray(design[:, 1:] @ self.covariate_effects_.values)

    @one_blas_thread
    def predict(
        self,
        K: Kernels | None = None,
        *,
        as_xarray: bool | None = None,
        return_std: bool = False,
        training: Kernels | None = None,
        **new: Any,
    ) -> Any:
        """Predict the targets of the row samples: zᵀb + Σ_j u_j, (sample,), or (sample, target) of several.

        Parameters
        ----------
        K, as_xarray, **new
            As in `KernelRegressor.predict`.
        return_std
            Whether to return, as a second result, the standard deviation of the error of each prediction of a new
            observation, which includes σ_e² and the error of the fixed effects. Its coordinate `reliability` is
            1 − Var(g − ĝ)/Var(g) = vᵀPv/Σ_j σ_j²k_j(x, x) of g = Σ_j u_j, for the covariances v of the row with the
            training samples and P = V⁻¹ − V⁻¹X(XᵀV⁻¹X)⁻¹XᵀV⁻¹.
        training
            The training kernels, K[train, train], for `return_std` of `K`; of `features` they are computed.

        Raises
        ------
        InputError
            As in `KernelClassifier.decision_function`; if `training` or k(x, x) of the rows is missing, or the estimate
            of the residual variance is not positive.
        """
        if not return_std:
            return super().predict(K, as_xarray=as_xarray, **new)
        if K is None and training is None and new.get("features") is not None:
            K = self._rows(None, **new)
            training, new = training_kernels(K), beside_features(new)
        if K is None or training is None:
            refuse(
                "return_std needs kernels of the rows and those of training: predict(K[test, train], return_std=True, "
                "training=K[train, train]), or features of the rows"
            )
        rows = as_kernel_set(K, "prediction", self.train_samples_)
        squares, reliabilities = self._error_variances(rows, training, new)
        prediction = super().predict(K, as_xarray=True, **new)
        deviation = prediction.copy(data=np.sqrt(squares).reshape(prediction.shape)).rename("standard_deviation")
        reliability = describe(prediction.copy(data=reliabilities.reshape(prediction.shape)).rename("reliability"))
        deviation = deviation.assign_coords(reliability=reliability)
        both = prediction, describe(deviation)
        return both if is_labelled(K, as_xarray) else tuple(values.values for values in both)

    def _error_variances(self, K: KernelSet, training: Kernels, new: dict[str, Any]) -> tuple[Float, Float]:
        """The variance of the error of each prediction, and its reliability, (rows, targets).

        With v = Σσ_j²k_j(x, ·), it is Σσ_j²k_j(x, x) + σ_e² − vᵀV⁻¹v + gᵀ(XᵀV⁻¹X)⁻¹g with g = x − XᵀV⁻¹v.
        """
        chosen, used = match_kernels(self, K)
        training = as_kernel_set(training, "prediction", self.train_samples_)
        trained, _ = match_kernels(self, training)
        if training.is_square and training.shape[1] > len(self.train_samples_):  # match_kernels chose columns by name
            trained = trained[places_of_training(self, training), :]
        weights = self.weights_.values.reshape(len(self.kernel_names_), -1)[used]
        residual = self.components_.variance.sel(term="residual").values.reshape(-1)
        if not (residual > 0).all():
            refuse(
                f"return_std needs a positive residual variance, found {residual.min():.3g}: the regression does not "
                "keep its estimates positive. Take method='reml', or predict without return_std"
            )
        new_design, _ = self._design(K.samples.astype(str), self.train_samples_, new.get("covariates"))
        result, reliabilities = np.empty((2, K.shape[1], weights.shape[1]))
        for part in self.statistics_:
            rows = np.arange(len(self.train_samples_)) if part.rows is None else part.rows
            cross = chosen[np.arange(K.shape[1]), rows]
            steps = self._trained_steps(part, used, K.samples, new.get("covariates"))
            (lens,), _ = measure([cross.view], steps, elements=True)
            diagonals = cross.view.source.diagonal(cross.view.kernels)
            diagonals = None if diagonals is None else diagonals[:, cross.view.rows]
            for step in lens.fitted.steps:
                diagonals = None if diagonals is None else step.diagonal(diagonals, rows=True)
            if diagonals is None:
                refuse(
                    "return_std needs k(x, x) of the new samples, which this rectangular set does not have; give it as "
                    "diagonal= of dmkl.create, or take K[test, train] of a set of all samples"
                )
            square = self._with_steps(trained[rows, rows])
            # The factors of new rows follow from the rows alone, unless steps took samples or covariates of training.
            on_factors = has_thin_factors(square.view) and cross.view.factor_widths is not None and not cross.view.steps
            on_factors &= not {"residualize", "take"} & {step.name for step in square.view.steps}
            X, _ = self._design(self.train_samples_[rows], self.train_samples_)
            for k in part.columns:
                variances = np.append(weights[:, k], residual[k])
                if on_factors:
                    over, covariances, design = covariances_on_factors(square.view, cross.view, weights[:, k], X)
                else:
                    over, covariances, design = square.lens(), weighted_blocks(lens, weights[:, k][None])[0], X
                exact = on_factors or _fits(square.view)
                solver = explained_variances(variances, covariances, design, new_design, exact=exact)
                ((explained, of_kernels),), _ = drive([(over, solver)])
                own = weights[:, k] @ diagonals
                result[:, k] = own + variances[-1] - explained
                reliabilities[:, k] = np.divide(of_kernels, own, out=np.zeros(len(own)), where=own > 0)
        return np.maximum(result, 0.0), reliabilities


def _is_projection(step: str | Covariates) -> bool:
    return step == "center" or isinstance(step, Covariates)


def _check_design(design: Float, names: Sequence[str], title: str) -> None:
    """Refuse fixed effects that are as many as the samples, or linearly dependent."""
    m, width = design.shape
    if width >= m:
        refuse(
            f"{title}the intercept and the covariates of residualize are {width} fixed effects of {m} samples, "
            "expected fewer than samples; give fewer covariates, or more samples"
        )
    size = np.linalg.norm(design, axis=0)
    if not width:
        return
    _, values, directions = np.linalg.svd(design / np.where(size > 0, size, 1.0), full_matrices=False)
    if values[-1] <= _COLLINEAR * values[0]:
        share = np.abs(directions[-1])
        involved = [repr(name) for name, part in zip(names, share, strict=True) if part > 0.05 * share.max()]
        refuse(
            f"{title}the fixed effects {', '.join(involved)} are linearly dependent over these {m} samples, so that "
            "their effects cannot be distinguished; leave one of them out of residualize"
        )


def _p_values(ratios: Float, quotients: Float, boundary: Array, n: int) -> Float:
    """P-values of the components, the residual and the total: by likelihood ratios, or by Wald's quotients."""
    values = np.where(np.isnan(ratios), scipy.stats.norm.sf(quotients), 0.5 * scipy.stats.chi2.sf(ratios, 1))
    if not np.isnan(ratios[-1]):
        k = np.arange(1, n + 1)
        values[-1] = scipy.stats.binom.pmf(k, n, 0.5) @ scipy.stats.chi2.sf(ratios[-1], k)
    values[boundary] = 1.0
    values[-2] = np.nan
    return np.asarray(values)
