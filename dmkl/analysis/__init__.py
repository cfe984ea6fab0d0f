"""Analyses of kernel sets before learning: similar kernels, alignment with labels, spectra."""

from dmkl.analysis.result import Analysis as Analysis
from dmkl.analysis.run import analyze as analyze
