"""Kernel sets from features."""
