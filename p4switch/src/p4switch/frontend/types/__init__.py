"""The types of P4_16, and what becomes of them in the intermediate representation."""
