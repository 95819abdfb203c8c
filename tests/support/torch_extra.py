"""A mark for tests that need PyTorch."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

# Not imported: that takes seconds, in each process that collects the tests.
NEEDS_TORCH = pytest.mark.skipif(
    find_spec("torch") is None, reason="torch is an extra: pip install hopsum[torch]"
)
