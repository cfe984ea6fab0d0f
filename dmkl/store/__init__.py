"""Kernel sets on disk: one Zarr v3 group is one kernel set (see storage/FORMAT.md)."""
