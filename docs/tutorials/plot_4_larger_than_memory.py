"""
Kernels that do not fit in memory, here and on SLURM
====================================================

Twenty kernels of 2,000 samples take 640 MB as NumPy arrays. This tutorial builds and searches them with a budget of
300 MiB, and then shows the same work as a job on SLURM. Larger sets need the same calls, and more time.
"""

# %%
# A kernel set on disk
# --------------------
# ``dmkl.build`` computes one tile after another and writes it to disk. The feature tables of 10⁵ samples can be files,
# which are read by rows.

import shutil
import tempfile

import dask
import numpy as np

import dmkl

rng = np.random.default_rng(0)
y = rng.integers(3, size=2000)
views = {f"view {k}": rng.normal(size=(2000, 20)) + (k < 3) * rng.normal(size=(3, 20))[y] * 0.5 for k in range(10)}
folder = tempfile.mkdtemp()
dask.config.set({"dmkl.memory": "300MiB"})  # of all processes of this host together
K = dmkl.build(f"{folder}/kernels.zarr", views, {"function": "rbf", "bandwidth": [0.5, 2]}, labels=y)
print(K)

# %%
# A search in a few passes
# ------------------------
# Each pass reads all tiles once, for all folds and all points of the grid. A checkpoint in ``state`` is written after
# every pass; the same call continues after an interruption.

grid = {"p": [1, 1.5, 2], "lam": [1e-3, 1e-2, 0.1]}
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
# The set is deleted here because this page is built anew each time.

shutil.rmtree(folder)
