"""Types of tensors for parametrised tests."""

from __future__ import annotations

from hopsum.collectives.choices import DataType

OF_HOSTS = [each for each in DataType if each.bits == 32]
"""Types that hosts sum among themselves; narrow ones are for switches and servers."""
