"""Roles of those who call the controller, and how certificates name them."""

from __future__ import annotations

from enum import StrEnum

ROLE_URI = "urn:hopsum:role:"
"""In front of a role: a URI in subjectAltName."""


class Role(StrEnum):
    """What a caller is to the cluster."""

    OPERATOR = "operator"
    """Runs it: may do everything, to everybody's jobs."""
    USER = "user"
    """Submits jobs, and cancels those."""
    AGENT = "agent"
    """A host's agent: attends jobs, and submits those of its host's processes."""
    VIEWER = "viewer"
    """Looks."""
