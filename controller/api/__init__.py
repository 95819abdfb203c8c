"""The controller's gRPC service, and its client."""
