"""Mutated files: what readers of users' files must read, or refuse in a line."""
