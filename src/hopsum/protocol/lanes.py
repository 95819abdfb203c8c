"""Numbers of values in a packet. Imports nothing: every command loads it to declare its options."""

LANES_DEFAULT = 256
LANES_STEP = 32
LANES_MAX = 352
