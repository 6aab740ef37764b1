"""Secrets out of quoted lines: what an intake shows may be pasted into a public issue."""

from __future__ import annotations

from harness.record.text import visible
from harness.repro.secrets import without_secrets

MASK = "***"


def masked(text: str) -> str:
    """Return a line with secrets masked and nothing hidden in it."""
    return without_secrets(visible(text), MASK)
