"""Solvers as coroutines that ask for passes, and the driver that lets many of them share each pass."""
