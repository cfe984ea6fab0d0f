"""Learners with scikit-learn's conventions, on kernel sets."""
