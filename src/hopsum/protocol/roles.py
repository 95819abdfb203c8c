"""Roles of those who call the controller, and how certificates name them."""

from __future__ import annotations

from enum import StrEnum

ROLE_URI = "urn:hopsum:role:"
"""Prefix of a role's URI in subjectAltName."""


class Role(StrEnum):
    """Role of a caller."""

    OPERATOR = "operator"
    """May do everything, with all jobs."""
    USER = "user"
    """May submit jobs and cancel its own."""
    AGENT = "agent"
    """The agent of a host: attends jobs, and submits jobs of local processes."""
    VIEWER = "viewer"
    """May only read."""
