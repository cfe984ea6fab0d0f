"""Solvers of MK-FDA."""
