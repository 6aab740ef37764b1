"""Situations of a build or machine that are answers, not failures of the harness."""

from __future__ import annotations


class CapabilityMissingError(RuntimeError):
    """The machine or build lacks something the scenario needs: the verdict is ``not_run``.

    Attributes:
        capability: What is missing, in a few words, such as ``usable GPU``.
    """

    def __init__(self, capability: str) -> None:
        """Name the missing capability."""
        super().__init__(f"not run: missing {capability}")
        self.capability = capability
