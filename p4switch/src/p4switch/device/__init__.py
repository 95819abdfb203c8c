"""A running switch: ports, packet loop, engine and P4Runtime together."""
