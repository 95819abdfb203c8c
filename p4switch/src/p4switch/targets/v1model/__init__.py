"""The v1model architecture: its engine as the control plane sees it, hashes, meters."""
