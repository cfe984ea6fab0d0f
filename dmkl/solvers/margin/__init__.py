"""Support vector machines on combined kernels, and kernel weights learned with them."""
