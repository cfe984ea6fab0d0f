"""Job files: what a whole piece of work is, what is noted of it beside its results, and batch jobs that do it."""
