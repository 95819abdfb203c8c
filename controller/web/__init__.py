"""HTTP interface of a cluster, for browsers and Prometheus."""
