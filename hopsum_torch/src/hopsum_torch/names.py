"""The backend's name, and the devices that it is registered for."""

from __future__ import annotations

NAME = "hopsum"
DEVICES = ("cpu", "cuda")
