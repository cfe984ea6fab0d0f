"""Pure NumPy building blocks: no Dask, no Zarr, every function testable on its own."""
