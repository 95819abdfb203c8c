"""P4Info, and P4Runtime over gRPC."""
