"""Many MK-FDA problems over the same kernels solved in one growing subspace that all of them share."""
