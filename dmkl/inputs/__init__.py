"""Readers of what users bring: files of kernels, features and labels, tables, and objects in memory."""

import lazy_loader

# The names are those of __init__.pyi: whoever matches samples needs no reader of HDF5.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
