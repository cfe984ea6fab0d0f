"""
Single cells: which gene sets distinguish cell types
====================================================

A cell has a vector of gene expression, and genes belong to sets: pathways, programs, families. Each set of genes gives
a kernel. This tutorial learns cell types from eight sets, shows which sets distinguish which type, and predicts the
cells of a donor that was not used.
"""

# %%
# Data
# ----
# The cells are simulated, so that the answer is known. Each of three types expresses one set of genes more strongly,
# the set "cycle" varies within all types, and the other four sets are noise. Donors differ, as batches do.

import anndata
import numpy as np
import pandas as pd

rng = np.random.default_rng(0)
types, set_names = np.array(["B", "NK", "T"]), ["B program", "NK program", "T program", "cycle", *"wxyz"]
kind, donor = rng.integers(3, size=700), rng.integers(7, size=700)
phase = rng.normal(size=(700, 1))
log_rates = rng.normal(0.5, 0.5, size=200) + 0.2 * rng.normal(size=(7, 200))[donor]
for k in range(3):
    log_rates[:, 25 * k : 25 * k + 25] += 0.25 * (kind == k)[:, None]
log_rates[:, 75:100] += 0.5 * phase
cells = anndata.AnnData(
    rng.poisson(np.exp(log_rates)).astype(np.float32),
    obs=pd.DataFrame(
        {"cell_type": types[kind], "donor": [f"donor {k}" for k in donor]},
        [f"cell {i}" for i in range(700)],
    ),
    var=pd.DataFrame(index=[f"gene {k}" for k in range(200)]),
)
gene_sets = {name: list(cells.var_names[25 * k : 25 * k + 25]) for k, name in enumerate(set_names)}
known, new = cells[cells.obs["donor"] != "donor 6"], cells[cells.obs["donor"] == "donor 6"]

# %%
# A kernel for each gene set
# --------------------------
# Counts are divided by the total of their cell, multiplied by the median total of the training cells, and log(1 + x)
# is taken. The set stores the median, so that new cells are transformed in the same way.
# Linear kernels of few genes are kept as the genes themselves, so that 100,000 cells need no 100,000 × 100,000 matrix.
# The sets could also come from a file of MSigDB: ``"columns": "hallmark.gmt"``.

import dmkl

spec = {"function": "linear", "transform": ["size-factor", "log1p"], "columns": gene_sets}
K = dmkl.build(None, known, spec, labels=known.obs["cell_type"])
print(K)

# %%
# Which p, which λ
# ----------------
# All cells of a donor are in the same fold, so that the score is that of new donors. The search also fits the plain sum
# of the kernels, and says how much the learned weights gain. :doc:`/reports` explains every number.

grid = {"p": [1, 1.25, 2, np.inf], "lam": [1e-3, 1e-2, 0.1, 1]}
result = dmkl.search(dmkl.MKFDA(), K, grid=grid, cv=3, groups=known.obs["donor"])
print(result)

# %%
# Left: the scores of all points. Right: the best score at each p. Equal weights (p = ∞) include the noise.

result.plot_scores()

# %%
# Which set for which type
# ------------------------
# All types share one vector of weights above. With ``sharing="none"`` each type has its own weights. They recover the
# simulation: each type has its own program.

by_type = dmkl.MKFDA(p=1, lam=0.1, sharing="none").fit(K)
by_type.plot_weight_map()

# %%
# The donor that was not used
# ---------------------------
# The model contains the training genes, and computes the kernels of new cells from their expression.

print("accuracy on the new donor:", np.mean(result.best_.predict(features=new) == new.obs["cell_type"]).round(3))

# %%
# One page to share
# -----------------
# The report has the choice, the scores, the weights, warnings, and the code that repeats the search.

page = dmkl.report(result, "single_cell.html")

# %%
# .. raw:: html
#
#     <iframe src="single_cell.html" title="Report of the search" class="report"></iframe>
