"""Reader of BMv2's JSON as p4c-bm2-ss writes it (docs/JSON_format.md of BMv2)."""
