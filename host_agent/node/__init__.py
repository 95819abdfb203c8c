"""An agent as a long-running process: the part of one host in all jobs of a cluster (002)."""
