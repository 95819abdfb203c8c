"""Reading and writing files: strict JSON, atomic writes."""
