"""The Portable Switch Architecture, where it differs from v1model for executors."""
