"""Backends that compute passes: threads, processes of this machine, a running scheduler, or jobs of a batch system."""
