"""Network state, planners, job manager, P4Runtime driver and gRPC service."""
