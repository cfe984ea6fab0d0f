"""What several tests need: small kernel sets, dense references, exact optima, the command line."""
