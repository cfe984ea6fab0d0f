"""What readers find in files of kernels, read as a whole or imported."""

import numpy as np

import dmkl
from dmkl.inputs import open_files
from dmkl.store.ingest import ingest
from helpers.conformance import problems


def kernels_in(paths, **how):
    """The kernels of files as arrays, their source, and the labels."""
    source, labels = open_files(paths, **how)
    kernels = [np.asarray(matrix[0 : matrix.shape[0], 0 : matrix.shape[1]]) for matrix in source.matrices()]
    return kernels, source, labels


def imported(paths, out, tile=3, **how):
    """The set that files are imported into, which follows the format, and the source."""
    source, labels = open_files(paths, **how)
    made = dmkl.open(ingest(out, source, labels, tile=tile))
    assert not problems(out)
    return made, source
