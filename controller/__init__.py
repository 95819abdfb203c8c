"""Network state, job manager, P4Runtime driver, gRPC service and web page."""
