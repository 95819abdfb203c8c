"""The reference: an interpreter of v1model programs in Python."""
