"""From P4_16 source to the intermediate representation, in layers: each imports those below."""
