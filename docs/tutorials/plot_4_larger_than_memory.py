"""
Kernels that do not fit in memory, here and on SLURM
====================================================

Twenty kernels of 1,797 handwritten digits take 520 MB as NumPy arrays. This tutorial builds and searches them with a
budget of 300 MiB, and then shows the same work as a job on SLURM. Larger sets need the same calls, and more time.
"""

# %%
# A kernel set on disk
# --------------------
# Images of 8 × 8 pixels by 13 writers. Source: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits,
# UCI (1998), under the licence CC BY 4.0, the part for testing, which scikit-learn brings. Their description has an
# accuracy of 0.98 on these images, of the nearest of 3,823 images of 30 other writers.
#
# Each feature set describes the images in its way. ``dmkl.build`` computes one tile after another and writes it to
# disk. The feature tables of 10⁵ samples can be files, which are read by rows.

import shutil
import tempfile

import dask
import numpy as np
from sklearn.datasets import load_digits

import dmkl

images, y = load_digits().images, load_digits().target
down, across = np.diff(images, axis=1), np.diff(images, axis=2)
views = {
    "pixels": images,
    "blocks": images.reshape(-1, 4, 2, 4, 2).mean(axis=(2, 4)),
    "row sums": images.sum(axis=2),
    "column sums": images.sum(axis=1),
    "upper half": images[:, :4],
    "lower half": images[:, 4:],
    "edges down": down,
    "edges across": across,
    "frequencies": np.abs(np.fft.rfft2(images)),
    "ink": np.stack([images.mean(axis=(1, 2)), images.std(axis=(1, 2))], axis=1),
}
views = {name: view.reshape(len(y), -1) for name, view in views.items()}
folder = tempfile.mkdtemp()
dask.config.set({"dmkl.memory": "300MiB"})  # of all processes of this host together
K = dmkl.build(f"{folder}/kernels.zarr", views, {"function": "rbf", "bandwidth": [0.5, 2]}, labels=y)
print(K)

# %%
# A search in a few passes
# ------------------------
# Each pass reads all tiles once, for all folds and all points of the grid. A checkpoint in ``state`` is written after
# every pass; the same call continues after an interruption. The score agrees with the published one.

grid = {"p": [1, 1.5, 2], "lam": [1e-4, 1e-3, 1e-2]}
result = dmkl.search(dmkl.MKFDA(), K, grid=grid, cv=3, state=f"{folder}/state")
print(result)

# %%
# The share of each kernel in the weight of the three folds. It is not the loss in score without the kernel, which
# ``dmkl.importance`` measures.

result.plot_weights()

# %%
# The same on SLURM
# -----------------
# The kernel set is in a folder that all nodes see. This job file is all that is needed; the marked lines depend on the
# site.
#
# .. literalinclude:: ../job.toml
#    :language: toml
#
# .. code-block:: console
#
#    $ pip install 'dmkl[slurm]'
#    $ dmkl preflight kernels.zarr --cluster slurm   # which folders, resources and versions each host has
#    $ dmkl submit job.toml --dry-run                # shows the script that sbatch would get
#    $ dmkl submit job.toml
#    $ dmkl report result -o report.html
#
# Scheduler, workers and search run in one allocation. Before its walltime ends, the search saves its progress and
# another job is submitted, until the search is complete. A killed job loses the pass that it was in. Python code starts
# jobs by a context manager:
#
# .. code-block:: python
#
#    with dmkl.cluster("slurm", jobs=4):
#        result = dmkl.search(dmkl.MKFDA(), K, grid=grid, cv=3, state="/shared/state")
#
# :doc:`/clusters` describes the backends and other batch systems, :doc:`/sizes` what a search takes of memory and disk.

# %%
# One page to share, one table to paste
# -------------------------------------

page = dmkl.report(result, "digits.html")
print(result.table().pivot(index="lam", columns="p", values="mean_score").round(4).to_string())

# %%
# .. raw:: html
#
#     <iframe src="digits.html" title="Report of the search" class="report"></iframe>

# %%
# The set is deleted here because this page is built anew each time.

shutil.rmtree(folder)
