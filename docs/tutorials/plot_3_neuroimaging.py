"""
Neuroimaging: a diagnosis from several modalities
=================================================

Patients and controls of several sites have measures of gray matter, white matter and functional connectivity. Sites
differ in their scanners and in their shares of patients, age affects the images, and some subjects lack a modality.
Do the modalities predict the diagnosis of new subjects, and which of them are needed?
"""

# %%
# Data
# ----
# The subjects are simulated, since images with diagnoses and sites are not free to be passed on. Gray and white matter
# differ in patients, connectivity does not. A third of the subjects are patients, more at one site than at the others.

import numpy as np
import pandas as pd

rng = np.random.default_rng(2)
subjects = [f"sub-{i:03}" for i in range(240)]
site = rng.integers(3, size=240)
patient = rng.random(240) < np.array([0.2, 0.3, 0.5])[site]
diagnosis = pd.Series(np.where(patient, "patient", "control"), subjects)
covariates = pd.DataFrame({"age": rng.uniform(20, 60, 240), "site": [f"site {k}" for k in site]}, subjects)
modalities = {}
for name, n_regions, difference in [("gray matter", 60, 0.3), ("white matter", 40, 0.2), ("connectivity", 100, 0.0)]:
    of_site = rng.normal(size=(3, n_regions))[site]
    of_age = 0.03 * np.outer(covariates["age"] - 40, rng.normal(size=n_regions))
    of_patients = difference * patient[:, None] * rng.normal(size=n_regions)
    values = of_site + of_age + of_patients + rng.normal(size=(240, n_regions))
    modalities[name] = pd.DataFrame(values, subjects)
modalities["white matter"] = modalities["white matter"].drop(subjects[::12])  # 20 subjects without this scan

# %%
# Kernels, with all subjects
# --------------------------
# ``join="outer"`` keeps subjects that lack a modality. In that kernel they are represented by the mean of the training
# subjects. Age and site are projected out of every kernel by the step ``residualize``, whose regression uses training
# subjects only. ``covariate_shares`` shows why: covariates explain a large part of each kernel.

import dmkl

K = dmkl.build(None, modalities, {"function": "linear"}, labels=diagnosis, join="outer")
print(K.covariate_shares(covariates).to_series().round(2))
learner = dmkl.MKFDA(steps=(dmkl.residualize(covariates), "trace"), priors="uniform")

# %%
# The score on new subjects
# -------------------------
# Accuracy would be misleading, since two thirds of the subjects are controls. Balanced accuracy is 0.5 without any
# information. p and λ are chosen within each outer fold, so that no subject is tested by a model that it helped to
# choose. The folds choose different λ, also the largest, because the score hardly depends on λ here.

grid = {"p": [1, 1.5, np.inf], "lam": [1e-3, 1e-2, 0.1, 1]}
estimate = dmkl.evaluate(learner, K, grid=grid, outer=5, inner=3, scoring="balanced_accuracy")
print(estimate)

# %%
# Each subject is counted once, by a model that it did not train. The counts are of five models, not of one.

estimate.plot_confusion()

# %%
# Which modalities are needed
# ---------------------------
# Left: the loss in score without each modality, with a 95 % interval; an interval that contains zero may be chance.
# Right: the score of each modality alone. A modality that predicts alone can still be replaceable by the others.

needed = dmkl.importance(learner, K, grid=grid, cv=5, scoring="balanced_accuracy")
needed.plot()

# %%
# Is there anything at all?
# -------------------------
# The same score for 99 permutations of the labels. Each permutation repeats the choice of λ. A small p-value means that
# the diagnosis depends on the kernels, not that the score is high.

test = dmkl.permutation_test(
    learner, K, grid={"p": [1.5], "lam": [1e-2, 0.1]}, n_permutations=99, cv=3, scoring="balanced_accuracy"
)
test.plot()

# %%
# One page to share, one table to paste
# -------------------------------------

page = dmkl.report(estimate, "neuroimaging.html")
print(needed.table().round(3).to_string(index=False))

# %%
# .. raw:: html
#
#     <iframe src="neuroimaging.html" title="Report of the evaluation" class="report"></iframe>
