"""Helpers shared by tests: small kernel sets, dense references, exact optima, faults."""
