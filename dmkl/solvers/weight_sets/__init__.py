"""Sets of kernel weights over which S(α, β) is maximized: norm balls, mixed norms, prices, and sets written in cvxpy.

Solvers use a set B through its support function h(q) = max over β in B of βᵀq. For any α the optimum is at most

    F(α) = ¼‖α‖² − tr(Hᵀα) + h(q(α)),

since S(α, β) = ¼‖α‖² − tr(Hᵀα) + βᵀq(α); and for any β in B it is at least S(α, β) − ‖R‖² (`dmkl.numerics.fisher`).
One certificate therefore serves all sets. Their support functions:

- ‖β‖_p ≤ 1: h(q) = ‖q‖_p*, 1/p + 1/p* = 1, by Hölder's inequality.
- Σ_g ‖β_g‖_p ≤ 1, groups g of kernels: with s_g = ‖β_g‖_p, βᵀq ≤ Σ_g s_g‖q_g‖_p* ≤ max_g ‖q_g‖_p*, attained where
  one group with the largest ‖q_g‖_p* has all the weight. The corresponding norm of the functions is mixed as well: the
  minimum of Σ_j ‖f_j‖²/β_j over these weights is (Σ_g ‖(‖f_j‖)_{j∈g}‖_{2p/(p+1)})².
- prices σ: σ∘β in B. With b = σ∘β, βᵀq = bᵀ(q/σ): h_σ(q) = h(q/σ).
- cones, {β : b − Gx ∈ K, x = (β, …)}: h(q) = min of bᵀz over z in the dual cone with Gᵀz = (q, 0); any such z bounds h
  from above.

Sources: Szafranski, Grandvalet, Rakotomamonjy: Composite kernel learning, Machine Learning 79 (2010), for groups.
Kloft, Brefeld, Sonnenburg, Zien: ℓp-norm multiple kernel learning, JMLR 12 (2011), for norms. Varma and Ray, ICCV 2007,
for prices.
"""
