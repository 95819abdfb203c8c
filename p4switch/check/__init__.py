"""From the syntax tree to the intermediate representation."""
