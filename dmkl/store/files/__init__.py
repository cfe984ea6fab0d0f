"""Data files as the source of a kernel set: NumPy, MATLAB, HDF5, text, Zarr, and folders of them."""

from dmkl.store.files.opening import open_files as open_files
from dmkl.store.files.opening import read_vector as read_vector
from dmkl.store.files.source import FileSource as FileSource
