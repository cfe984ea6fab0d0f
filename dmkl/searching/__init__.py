"""Cross-validated search over a grid of parameters."""
