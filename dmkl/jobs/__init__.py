"""Job files, the records beside their results, and the scripts of batch jobs that run them."""
