"""Where passes compute: threads, processes of this machine, a running scheduler, or jobs of a batch system."""
