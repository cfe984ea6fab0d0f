"""Analyses of kernel sets before learning: similar kernels, alignment with labels, spectra."""
