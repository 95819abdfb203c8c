"""Workers and parameter servers: protocol state machines, numbers, packet paths."""
