"""From text to tokens: preprocessor, macros, lexer."""
