"""The data path in C: worker, server, and both at one host, without I/O, clock or allocation."""
