"""Reports on models and results: one page of HTML with the answer, its certainty, and the code that repeats it."""
