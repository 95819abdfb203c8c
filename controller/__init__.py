"""Network state, job engine, P4Runtime driver, gRPC service and web page."""
