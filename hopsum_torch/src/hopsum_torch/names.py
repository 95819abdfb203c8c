"""By which name the backend is registered, and for which devices."""

from __future__ import annotations

NAME = "hopsum"
DEVICES = ("cpu", "cuda")
