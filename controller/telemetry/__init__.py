"""The state of the network and its hosts, and why a job makes no progress."""
