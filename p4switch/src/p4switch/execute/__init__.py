"""Executors of checked programs: the interpreter and the native one."""
