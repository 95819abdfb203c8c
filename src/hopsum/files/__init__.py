"""Reading and writing files: strict JSON, atomic writes, lock files."""
