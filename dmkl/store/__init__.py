"""Kernel sets, feature tables, models and results on disk."""
