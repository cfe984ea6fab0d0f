"""Kernels computed from feature tables."""
