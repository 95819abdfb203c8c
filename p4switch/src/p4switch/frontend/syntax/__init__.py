"""From tokens to the syntax tree: a recursive-descent parser."""
