"""Analyses of kernel sets before learning: similar kernels, alignment with labels, spectra."""

from dmkl.analysis.analyze import Analysis as Analysis
from dmkl.analysis.analyze import analyze as analyze
