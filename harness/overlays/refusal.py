"""The error of an overlay that does not fit a build."""

from __future__ import annotations


class OverlayRefusedError(RuntimeError):
    """The overlay does not fit this build; the message says what was found and what to change."""
