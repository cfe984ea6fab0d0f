"""One pass over the stored kernels as a few large Dask tasks."""
