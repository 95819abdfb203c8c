"""What browsers and Prometheus read of a cluster, over HTTP."""
