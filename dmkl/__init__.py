"""Distributed multiple kernel learning.

Kernel matrices live on disk as one chunked Zarr group (`create`, `open`); a `KernelSet` is a lazy, labeled view of
them; learners (`MKFDA` and the baselines) find weights in passes over the tiles that run on Dask, with a proven gap
where the problem is convex.
"""

import lazy_loader

# The names are those of __init__.pyi.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
