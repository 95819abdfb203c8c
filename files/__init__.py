"""Reading and writing files: strict JSON, and writes of which nobody sees half."""
