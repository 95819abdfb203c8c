"""The language server: what an editor shows of a P4 program."""
