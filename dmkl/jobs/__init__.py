"""Job files, the records of their results, and the scripts of batch jobs that run them."""
