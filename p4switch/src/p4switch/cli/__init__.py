"""The `p4switch` command."""
