"""
Genetics: heritability of each chromosome, and predictions
==========================================================

How much of the variance of a trait do the variants of each chromosome explain, and what is the trait of individuals
whose phenotype is missing? The model is that of GCTA: y = Zb + Σ u_j + e with u_j ~ N(0, σ_j²K_j), where K_j is the
relationship matrix of a chromosome.
"""

# %%
# Data
# ----
# The individuals are simulated: 200 families of four siblings, 300 variants on each of four chromosomes. Variants of
# the first two chromosomes explain 40 % and 20 % of the variance of the trait, the others nothing. Men are taller.

import numpy as np
import pandas as pd

rng = np.random.default_rng(1)
names = [f"family {i // 4}, child {i % 4}" for i in range(800)]
relationships, genetic = {}, np.zeros(800)
for chromosome, share in {"chr1": 0.4, "chr2": 0.2, "chr3": 0.0, "chr4": 0.0}.items():
    frequency = rng.uniform(0.1, 0.5, 300)
    parents = rng.random((200, 2, 2, 300)) < frequency  # family, parent, allele, variant
    passed_on = rng.integers(2, size=(200, 4, 2, 300))  # family, child, parent, variant
    alleles = np.where(passed_on, parents[:, None, :, 0], parents[:, None, :, 1])
    dosages = alleles.sum(axis=2).reshape(800, 300)
    W = (dosages - 2 * frequency) / np.sqrt(2 * frequency * (1 - frequency))
    relationships[chromosome] = pd.DataFrame(W @ W.T / 300, names, names)
    effect = W @ rng.normal(size=300)
    genetic += np.sqrt(share) * effect / effect.std()
male = pd.DataFrame({"male": rng.integers(2, size=800)}, names)
height = pd.Series(170 + 8 * (genetic + np.sqrt(0.4) * rng.normal(size=800)) + 12 * male["male"], names)
measured = height.copy()
measured[rng.choice(names, 100, replace=False)] = np.nan  # the phenotypes that are to be predicted

# %%
# A kernel set of relationship matrices
# -------------------------------------
# Matrices in GCTA's files are imported by ``dmkl import kernels.zarr chr*.grm.bin --labels height.pheno --join outer``.
# Names match matrices, phenotypes and covariates, in any order.

import dmkl

K = dmkl.create(None, relationships)
train, unphenotyped = measured.notna().to_numpy(), measured.isna().to_numpy()
print(K)

# %%
# Shares of the variance
# ----------------------
# ``variance_share`` is the part of the variance that a chromosome explains, with its standard error. ``p_value`` tests
# whether the part is zero. The shares of chr3 and chr4, which explain nothing, are at or near the boundary.

model = dmkl.VarianceComponents(steps=(dmkl.residualize(male),)).fit(K[train, train], measured[train])
print(model.components_[["variance_share", "variance_share_se", "p_value"]].to_dataframe().round(3))
print(model.fixed_effects_.to_dataframe().round(2))

# %%
# The weights are the variances σ² themselves, in cm². A zero is on the boundary, and no proof of no effect.

model.plot_weights()

# %%
# Individuals without a phenotype
# -------------------------------
# Their siblings, and the effect of sex, predict their height. The standard deviations are those of the model: about
# 95 % of the true values are within two of them.

import matplotlib.pyplot as plt

predicted, deviation = model.predict(K[unphenotyped, train], return_std=True, training=K[train, train])
true = height[unphenotyped]
print("correlation with the true height:", np.corrcoef(predicted, true)[0, 1].round(2))
print("within two standard deviations:", float(np.mean(np.abs(predicted - true) < 2 * deviation)))
figure, ax = plt.subplots(figsize=(4.5, 4), layout="constrained")
ax.errorbar(predicted, true, xerr=deviation, fmt="o", markersize=3, elinewidth=0.5)
_ = ax.set(xlabel="predicted height, cm (± standard deviation)", ylabel="true height, cm")

# %%
# One page to share
# -----------------

page = dmkl.report(model, "genetics.html")

# %%
# .. raw:: html
#
#     <iframe src="genetics.html" title="Report of the model" class="report"></iframe>
