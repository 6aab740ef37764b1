"""Small named corrections of a build that can be switched on for a run.

Each overlay is a module that can be imported on its own in a training job (torch and the standard
library only until it is installed), says which builds it fits, and refuses the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from harness.overlays.causal_offsets import CausalOffsets
from harness.overlays.refusal import OverlayRefusedError


class KernelOverlay(Protocol):
    """An overlay that stands between Megatron's cuDNN caller and the kernel namespace."""

    def check(self, facts: Mapping[str, object]) -> None:
        """Raise ``OverlayRefusedError`` when the build does not need it or cannot take it."""

    def wrap(self, namespace: Any) -> Any:
        """Return the namespace with the correction in place."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One row of the table of overlays."""

    overlay: KernelOverlay
    doc: str


OVERLAYS: dict[str, Entry] = {
    "causal_offsets": Entry(
        overlay=CausalOffsets(),
        doc="Passes q_causal_offsets, derived from the segment lengths, to the forward wrapper.",
    ),
}
"""Name, as under ``overlays:`` in a scenario, to overlay."""

__all__ = ["OVERLAYS", "KernelOverlay", "OverlayRefusedError"]
