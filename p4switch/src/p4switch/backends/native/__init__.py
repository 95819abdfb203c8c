"""P4 programs as native code: a C generator, a small C runtime, and the engine that runs them."""
