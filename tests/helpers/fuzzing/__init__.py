"""Mutated files, which readers must read or refuse with a one-line error."""
