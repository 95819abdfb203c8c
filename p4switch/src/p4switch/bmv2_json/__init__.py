"""BMv2's JSON, as p4c-bm2-ss writes it, read as a program (docs/JSON_format.md of BMv2)."""
