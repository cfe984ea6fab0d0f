"""Readers of what users bring: files of kernels, features and labels, tables, and objects in memory."""

from dmkl.inputs.features import as_features as as_features
from dmkl.inputs.file_source import FileSource as FileSource
from dmkl.inputs.kernel_files import open_files as open_files
from dmkl.inputs.kernel_sources import as_source as as_source
from dmkl.inputs.label_files import read_file as read_file
from dmkl.inputs.label_files import read_vector as read_vector
from dmkl.inputs.labels import Labels as Labels
