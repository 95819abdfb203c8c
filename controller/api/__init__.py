"""The controller's gRPC services, and their client."""
