"""Support vector machines on weighted kernels: one machine in and out of core, and the weights that suit it best."""
