"""Sizes of TCP segments, as Linux sends them on Ethernet."""

from __future__ import annotations

SEGMENT_BYTES = 1448
"""Data in a full TCP segment, with Linux's timestamp option and an MTU of 1500."""
SEGMENT_HEADER_BYTES = 66
"""Ethernet, IPv4 and TCP headers of a segment; the length of an acknowledgement."""
