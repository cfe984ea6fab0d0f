"""
Single cells: which genes distinguish cell types
================================================

A cell has a vector of gene expression, and genes belong to sets: pathways, programs, families. Each set of genes gives
a kernel. This tutorial learns the types of blood cells from families of genes, shows which family distinguishes which
type, and predicts cells that were not used.
"""

# %%
# Data
# ----
# Blood cells of one donor: 687 cells, the counts of 765 genes that vary between them, and the cell type by the most
# similar of the sorted populations. Source: G. Zheng et al., Nature Communications 8 (2017) 14049, as
# `scanpy <https://github.com/scverse/scanpy>`__ distributes a sample of them under the BSD licence (``pbmc.LICENSE``).
# Every seventh cell is kept for the end.

import anndata
import numpy as np
import pandas as pd

cells = anndata.read_h5ad("pbmc.h5ad")
kept = np.arange(len(cells)) % 7 == 6
known, new = cells[~kept], cells[kept]
print(cells.obs["cell_type"].value_counts())

# %%
# A kernel for each family of genes
# ---------------------------------
# Families are those of the names of genes, not of the labels. In the paper (Figure 3) B cells are known by CD79A, T
# cells by CD3D, NK cells by NKG7, and myeloid cells by S100A8 and FCER1A: the answer should have the families of these.

families = {
    "B-cell receptor": "CD79[AB]|MS4A1|BANK1|BLK|FCRLA|IG.*|POU2AF1|PNOC|SPIB|TNFRSF1[37].?",
    "T-cell receptor": "CD3[DEG]|CD247|CD2|CD4|CD7|CD8[AB]|CD27|CD28|CAMK4|CCR7|GATA3|IL7R|IL32|ITM2A|LAT|LCK|TIGIT",
    "cytotoxic granules": "GZM.|PRF1|GNLY|NKG7|CCL[45]|CST7|CTSW|FCGR3A|FGFBP2|HOPX|KLR.*|SPON2|XCL.",
    "myeloid": "S100A.*|LYZ|CST[3B]|FCN1|FCER1.|AIF1|LST1|TYROBP|CD33|CF[DP]|CLEC10A|CPVL|LGALS.|MNDA|SPI1",
    "HLA class II": "HLA-D.*|CD74",
    "proteasome": "PSM.*|POMP",
    "mitochondria": "NDUF.*|COX.*|ATP5.*|UQCR.*|MRP[LS].*|TIMM.*|TOMM.*",
    "translation": "EIF.*|RP[LS].*",
}
gene_sets = {name: cells.var_names[cells.var_names.str.fullmatch(of)].tolist() for name, of in families.items()}
in_families = cells.var_names.str.fullmatch("|".join(families.values()))
gene_sets["all others"] = cells.var_names[~in_families].tolist()
print({name: len(genes) for name, genes in gene_sets.items()})

# %%
# Counts are divided by the total of their cell, multiplied by the median total of the training cells, and log(1 + x)
# is taken. The set stores the median, so that new cells are transformed in the same way.
# Linear kernels of few genes are kept as the genes themselves, so that 100,000 cells need no 100,000 × 100,000 matrix.
# The sets could also come from a file of MSigDB: ``"columns": "hallmark.gmt"``.

import dmkl

spec = {"function": "linear", "transform": ["size-factor", "log1p"], "columns": gene_sets, "name": "{columns}"}
K = dmkl.build(None, known, spec, labels=known.obs["cell_type"])
print(K)

# %%
# Which p, which λ
# ----------------
# The search also fits the plain sum of the kernels, and says how much the learned weights gain. :doc:`/reports`
# explains every number. With cells of several donors, ``groups=known.obs["donor"]`` keeps those of a donor in the same
# fold, so that the score is that of new donors.

grid = {"p": [1, 1.25, 2, np.inf], "lam": [1e-3, 1e-2, 0.1, 1]}
result = dmkl.search(dmkl.MKFDA(), K, grid=grid, cv=3)
print(result)

# %%
# Left: the scores of all points. Right: the best score at each p. The plain sum is as good here.

result.plot_scores()

# %%
# Which family for which type
# ---------------------------
# All types share one vector of weights above. With ``sharing="none"`` each type has its own weights. They agree with
# the paper: B cells, T cells and NK cells are told by the families of CD79A, CD3D and NKG7, monocytes and dendritic
# cells by that of S100A8 and FCER1A, and the genes of no family have no weight.

by_type = dmkl.MKFDA(p=1, lam=0.1, sharing="none").fit(K)
by_type.plot_weight_map()

# %%
# Cells that were not used
# ------------------------
# The model contains the training genes, and computes the kernels of new cells from their expression.

predicted = pd.Series(result.best_.predict(features=new), new.obs_names, name="predicted")
print("accuracy on the cells that were kept:", np.mean(predicted == new.obs["cell_type"]).round(3))

# %%
# One page to share, one table to paste
# -------------------------------------
# The report has the choice, the scores, the weights, warnings, and the code that repeats the search. The table has the
# weights of each type.

page = dmkl.report(result, "single_cell.html")
print(by_type.weights_.to_pandas().round(2).to_string())

# %%
# .. raw:: html
#
#     <iframe src="single_cell.html" title="Report of the search" class="report"></iframe>
