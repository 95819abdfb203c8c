"""P4_16 source: preprocessor, lexer, parser and the syntax tree they build."""
