"""The control plane's side: P4Info, and P4Runtime over gRPC."""
