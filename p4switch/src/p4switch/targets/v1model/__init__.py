"""The v1model architecture: the engine's interface and control-plane state, hashes, meters."""
