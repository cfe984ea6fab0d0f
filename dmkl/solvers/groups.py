"""Group-sensitive MKL (GS-MKL): kernel weights for each group of samples, learned together with one classifier.

Yang, Li, Tian, Duan, Gao, ICCV 2009. With c(i) the group of sample i, β_m^g the weight of kernel m for group g,

    K(x_i, x_j) = Σ_m β_m^{c(i)} β_m^{c(j)} K_m(x_i, x_j)                               (Eq. 3, superscripts corrected),

which is positive semidefinite for any β. The weights come from parameters a, b (n, G) and the mean ρ_m^g of K_m over
pairs of group g (Eqs. 12 and 13), by a softmax over the kernels m of each group,

    γ_m^g = exp(z_m^g) / Σ_l exp(z_l^g),   z_m^g = a_m^g ρ_m^g + b_m^g,

as β = γ ("softmax", the paper's) or β = √γ ("root"). The training objective

    W(β) = max over u of  D(u) − s Σ_m Σ_gg' β_m^g β_m^g' V_m^gg',   V_m^gg' = u_gᵀK_mu_g',

where u_g equals u on group g and is zero elsewhere, is minimized over a and b:

    hinge   s = ½,  D = Σα,  u = α∘y,  0 ≤ α ≤ C,  Σu = 0: a C-SVM (Eqs. 8 to 10 up to the sign; S = ½V)
    square  s = λ,  D = 2λhᵀu − λ²‖u‖²,  Σu = 0: regularized least squares with a bias, Σ (h_i − f(x_i))² + λ‖w‖²

For one group and centered kernels the second is MK-FDA with α = 2λu; a composite of several groups is not centered,
hence the bias. If u is unique, ∂W/∂β_m^g = −F_m^g with F_m^g = 2s Σ_g' β_m^g' V_m^gg'. Through the softmax, with
β = γ^κ, κ = 1 or ½,

    ∂W/∂b_m^g = −κ (β_m^g F_m^g − γ_m^g Σ_l β_l^g F_l^g),    ∂W/∂a_m^g = ρ_m^g ∂W/∂b_m^g:

Eqs. 14 and 15 for κ = 1. (They have β_m(δ_ml − β_l) where the chain rule gives β_l(δ_ml − β_m), which is the same.)

Properties
----------
- a is redundant: a and b enter through z alone, so that a only changes the metric of the descent, by 1 + ρ².
- Under "softmax" G = 1 is not canonical MKL, contrary to section 3.3 of the paper: the combined weights are β_m², with
  sum one only if a single kernel has all the weight. W is convex in β², but neither convex nor concave in β, and on the
  simplex each single kernel is a local minimum: a step ε from the corner e_m towards e_l reduces β_m² by 2ε and
  increases β_l² by ε². Few kernels are favored because of the sum of β², independently of the kernels' content.
- Under "root" Σ_m (β_m^g)² = 1. G = 1 is canonical MKL, convex in γ: every stationary point with γ > 0 is the optimum.
  Kernels of unit diagonal make composites of unit diagonal, for any groups. It is the default.
- With more groups W is not convex under either: restart from several seeds and take the lowest objective.
- Groups inside classes, as in the paper, reveal the labels: W falls most if groups of different classes share no
  kernel. Their block of the composite then vanishes, f has the right sign on every training sample because of c(i)
  alone, and a new sample gets the class of its group, however that was assigned. Group the training samples by a rule
  that also applies to new samples instead: across classes, or by `as_new` of `dmkl.numerics.grouping`.

Localized MKL
-------------
Gönen and Alpaydın (ICML 2008; Pattern Recognition 46, 2013) make each sample a group, with "softmax" weights η(x) and
z_j(x) = v_jᵀg(x) + c_j, linear in gating features g(x), so that they extend to new samples:

    f(x) = Σ_j η_j(x) Σ_i u_i η_j(x_i) K_j(x_i, x) + b.

Then −η_ji ∂W/∂η_ji = 2s η_ji u_i (K_j(η_j∘u))_i, and ∂W/∂v_j = Σ_i g(x_i) ∂W/∂z_ji, ∂W/∂c_j = Σ_i ∂W/∂z_ji.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from scipy.optimize import LbfgsInvHessProduct
from scipy.special import softmax

from dmkl import progress
from dmkl.arrays import Float, Index
from dmkl.numerics.grouping import one_hot
from dmkl.numerics.semidefinite import UNKNOWN, KernelFacts, check_forms
from dmkl.solvers.interface import SVM, CombinedEntries, EachProduct, Outcome, Projection, Status, Step
from dmkl.solvers.masters import LineSearch

WeightForm = Literal["softmax", "root"]


def group_weights(logits: Float, weighting: WeightForm = "root") -> Float:
    """β from z, (n, G) each: the softmax over the kernels of each group, or its root (Eq. 12)."""
    gamma = softmax(logits, axis=0)
    return np.asarray(np.sqrt(gamma) if weighting == "root" else gamma)


def parameter_gradients(
    weights: Float, statistics: Float, projected: Float, scale: float, weighting: WeightForm = "root"
) -> tuple[Float, Float]:
    """∂W/∂a and ∂W/∂b, (n, G) each (Eqs. 14 and 15 up to the sign of the objective; see the module).

    They are computed from β and ρ, (n, G) each, the projections V_m^gg' = u_gᵀK_mu_g', (n, G, G), and the scale s: ½
    for the hinge loss, λ for the square loss.
    """
    pull = 2.0 * scale * weights * np.einsum("nh,ngh->ng", weights, projected)
    by_b = _logit_gradient(weights, pull, weighting)
    return statistics * by_b, by_b


def _logit_gradient(weights: Float, pull: Float, weighting: WeightForm) -> Float:
    """∂W/∂z, (n, G), from β and −β ∂W/∂β."""
    power = 0.5 if weighting == "root" else 1.0
    gamma = weights**2 if weighting == "root" else weights
    # The derivative of a softmax: γ_m(δ_ml − γ_l). For β = √γ the same with a factor of ½, since ∂β/∂z = β∂(log
    # γ)/∂z/2.
    return np.asarray(-power * (pull - gamma * pull.sum(axis=0)))


@dataclass(frozen=True)
class GroupProblem:
    """One binary problem."""

    y: Float  # (m,): 1 and −1 for the hinge loss, any targets for the square loss
    groups: Index  # (m,), the group of each sample, 0 … G − 1
    n_groups: int  # G. An empty group keeps its initial weights.
    C: float | Float | None = None
    lam: float | None = None
    """The price of a unit of hinge loss (or one for each sample, (m,)), or λ of the square loss: exactly one is set."""
    name: str = ""  # the name of the problem in reports

    @property
    def scale(self) -> float:
        """s, the factor of uᵀKu in the objective."""
        return 0.5 if self.lam is None else self.lam


def gs_mkl(
    problem: GroupProblem,
    n_kernels: int,
    facts: KernelFacts = UNKNOWN,
    *,
    weighting: WeightForm = "root",
    seed: int | None = None,
    spread: float = 1.0,
    tol: float = 1e-4,
    max_iter: int = 100,
) -> Generator[SVM | Projection, Any, Outcome]:
    """Learn weights for each group by descent with a line search (Algorithm 1): a generator of requests.

    The direction is that of limited-memory BFGS in (a, b); a step is kept if the objective of the trained classifier
    falls by Armijo's rule. It ends when five steps together lower the objective by less than the fraction `tol` of it
    (trainings are ten times as accurate), or after `max_iter` steps.

    Without a `seed` it starts from equal weights, otherwise from a and b drawn from a normal distribution with
    deviation `spread` (small for the paper's "small random numbers"). Kernels of unit diagonal have |ρ| ≤ 1; with far
    larger ρ a random a gives all of the weight to one kernel. IndefiniteKernelError is raised if the classifier
    shows that a kernel is not positive semidefinite.
    """
    n_groups = problem.n_groups
    indicator = one_hot(problem.groups, n_groups)
    means = yield Projection(indicator / np.maximum(indicator.sum(axis=0), 1.0))
    # ρ_m^g: the diagonal of the projections on the normalized indicators is the mean of the kernel over pairs of the
    # group.
    statistics = np.einsum("ngg->ng", means).copy()
    shape = (2, n_kernels, n_groups)
    start = np.zeros(shape) if seed is None else spread * np.random.default_rng(seed).normal(size=shape)

    def logits(theta: Float) -> Float:
        return np.asarray(theta[0] * statistics + theta[1])

    def gradient(weights: Float, u: Float) -> Generator[Any, Any, Float]:
        projected = yield Projection(indicator * u[:, None])
        check_forms(np.einsum("ng,ngh,nh->n", weights, projected, weights), facts, float(u @ u))
        return np.stack(parameter_gradients(weights, statistics, projected, problem.scale, weighting))

    outcome, _ = yield from _descend(problem, start, logits, gradient, weighting=weighting, tol=tol, max_iter=max_iter)
    return outcome


def _descend(
    problem: GroupProblem,
    theta: Float,
    logits: Callable[[Float], Float],
    gradient: Callable[[Float, Float], Generator[Any, Any, Float]],
    *,
    weighting: WeightForm,
    tol: float,
    max_iter: int,
) -> Generator[Any, Any, tuple[Outcome, Float]]:
    """Minimize W over the parameters θ of the weights, from `theta` on; returns the outcome and θ.

    ``extra["trainings"]`` counts the classifiers, including those of steps that the line search refused. `logits` gives
    z (n, G) of θ, a linear function, and `gradient` asks for ∂W/∂θ at the weights (n, G) and u (m,).
    """
    watch = progress.current()
    objectives: list[float] = []
    trainings, memory = 1, _Memory()

    # The descent compares objectives, so a training must be more accurate than the decrease that it has to show.
    def train(at: Float, start: Float | None) -> Generator[Any, Any, tuple[Float, Any]]:
        weights = group_weights(logits(at), weighting)
        groups, lam = problem.groups, problem.lam
        answer = yield SVM(weights, problem.y, problem.C, 0.1 * tol, start, groups=groups, lam=lam)
        return weights, answer

    weights, answer = yield from train(theta, None)
    status = Status.FALLING
    for step in range(max_iter + 1):
        objectives.append(float(answer.primal))
        watch.note(f"{problem.name}step {step}: objective {objectives[-1]:.6g}")
        if step >= _WINDOW and objectives[-1 - _WINDOW] - objectives[-1] <= tol * abs(objectives[-1]):
            status = Status.SMALL_DECREASE
            break
        if step == max_iter:
            break
        slope = yield from gradient(weights, np.asarray(answer.u))
        direction = memory.direction(theta, slope)
        # Limits the change of any logit in one step: the softmax is flat at its far ends, and a kernel whose weight
        # has vanished there gets no gradient that would bring it back.
        furthest = float(np.abs(logits(direction)).max())
        length = min(1.0, _REACH / furthest) if furthest > 0 else 0.0
        # The line search is for maxima: it is given −W.
        search = LineSearch(theta, direction, -slope, -objectives[-1], share=1e-4, length=length, factor=0.3)
        while search.point is not None:
            new_weights, new_answer = yield from train(search.point, answer.u)
            trainings += 1
            # Armijo's rule alone would accept an equal objective if the promised decrease rounds to nothing.
            if float(new_answer.primal) < objectives[-1] and search.accepts(-float(new_answer.primal)):
                theta, weights, answer = search.point, new_weights, new_answer
                break
            search.shorten()
        else:
            status = Status.SMALL_DECREASE  # no lower point within the accuracy of a training
            break
    dual, bias = np.asarray(answer.u)[:, None], np.array([answer.bias])
    extra = {"trainings": np.array(float(trainings))}
    steps = [Step(None, {"objective": objective}) for objective in objectives]
    return Outcome(status, weights, dual, objectives[-1], bias=bias, steps=steps, extra=extra), theta


def gating_gradient(weights: Float, u: Float, products: Float, scale: float, features: Float) -> Float:
    """∂W/∂(v_j, c_j), (n, q + 1), from η (n, m), u (m,), products K_j(η_l∘u), (n, m, n), s and (g, 1), (m, q + 1)."""
    pull = 2.0 * scale * weights * u * np.einsum("jij->ji", products)
    return np.asarray(_logit_gradient(weights, pull, "softmax") @ features)


def localized_mkl(
    problem: GroupProblem,
    n_kernels: int,
    gating: Float | None,
    facts: KernelFacts = UNKNOWN,
    *,
    places: tuple[Index, int] | None = None,
    tol: float,
    max_iter: int,
) -> Generator[Any, Any, Outcome]:
    """Localized MKL by descent from equal weights, a generator of requests; each sample is a group of the problem.

    `gating` holds g(x_i), (m, q), the row of x_i in the mean of the kernels if None; the other parameters and errors
    are as in `gs_mkl`. The weights of the outcome are the means of η over the samples, (n,), and
    ``extra["column_weights"]`` is η of the samples, v and c side by side, (n, m + q + 1, 1). With `places`, the
    positions of these kernels and the number of all, the latter are those of all kernels: the others have c = −∞.
    """
    m = len(problem.y)
    if gating is None:
        gating = yield CombinedEntries(np.full(n_kernels, 1.0 / n_kernels), np.arange(m))
    # Standardized features: the first step has one length for all parameters.
    center, scale = gating.mean(axis=0), gating.std(axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    features = np.column_stack([(gating - center) / scale, np.ones(m)])

    def gradient(weights: Float, u: Float) -> Generator[Any, Any, Float]:
        products = yield EachProduct((weights * u).T)
        check_forms(np.einsum("ji,i,jij->j", weights, u, products), facts, float(u @ u))
        return gating_gradient(weights, u, products, problem.scale, features)

    start = np.zeros((n_kernels, features.shape[1]))
    outcome, theta = yield from _descend(
        problem, start, lambda at: at @ features.T, gradient, weighting="softmax", tol=tol, max_iter=max_iter
    )
    slopes = theta[:, :-1] / scale
    columns = np.hstack([outcome.weights, slopes, theta[:, -1:] - slopes @ center[:, None]])
    if places is not None:
        of_some, (kernels, n_all) = columns, places
        columns = np.zeros((n_all, of_some.shape[1]))
        columns[:, -1] = -np.inf
        columns[kernels] = of_some
    extra = {**outcome.extra, "column_weights": columns[..., None]}
    return replace(outcome, weights=outcome.weights.mean(axis=1), extra=extra)


# Number of steps over which the decrease is compared with the tolerance; `Status.SMALL_DECREASE` names it.
_WINDOW = 5
_REACH = 3.0


class _Memory:
    """Limited-memory BFGS (Nocedal and Wright, Numerical Optimization, Algorithm 7.4)."""

    def __init__(self) -> None:
        self._pairs: deque[tuple[Float, Float]] = deque(maxlen=10)
        self._last: tuple[Float, Float] | None = None

    def direction(self, at: Float, gradient: Float) -> Float:
        """A direction of descent at a new point."""
        if self._last is not None:
            s, t = (at - self._last[0]).ravel(), (gradient - self._last[1]).ravel()
            # W is not convex: a pair with negative curvature would make the direction ascend.
            if s @ t > 1e-10 * np.linalg.norm(s) * np.linalg.norm(t):
                self._pairs.append((s, t))
        self._last = at, gradient
        # Without curvature the largest entry of the first step is bounded: the gradient has no natural length.
        if not self._pairs:
            return -gradient * (_REACH / 3.0 / max(float(np.abs(gradient).max()), 1e-300))
        steps, changes = map(np.array, zip(*self._pairs, strict=True))
        # The initial inverse Hessian is sᵀt/tᵀt times the identity, of the latest pair; that of SciPy is the identity.
        scale = float(steps[-1] @ changes[-1] / (changes[-1] @ changes[-1]))
        inverse = LbfgsInvHessProduct(steps / scale, changes)
        return np.asarray(-scale * inverse.matvec(gradient.ravel()).reshape(gradient.shape))
