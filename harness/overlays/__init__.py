"""Small named corrections of a build that can be switched on for a run.

Each overlay is a module that can be imported on its own in a training job (torch and the standard
library only until it is installed), says which builds it fits, and refuses the others. They
combine in any order and come off in the reverse one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from harness.overlays import effective_group, graph_warnings, layout_memo, scoring_plan
from harness.overlays.causal_offsets import CausalOffsets
from harness.overlays.refusal import OverlayRefusedError


class Overlay(Protocol):
    """A correction: of the build's own code, of what stands between it and a kernel, or of both."""

    @property
    def provides(self) -> Mapping[str, bool]:
        """Facts that hold of a build with it, whatever its sources say."""

    def check(self, facts: Mapping[str, object]) -> None:
        """Raise ``OverlayRefusedError`` when the build does not need it or cannot take it."""

    def install(self) -> Callable[[], None]:
        """Correct the loaded build; returns what takes the correction out again."""

    def wrap(self, namespace: Any) -> Any:
        """Return the kernel namespace with the correction in place."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One row of the table of overlays."""

    overlay: Overlay
    doc: str


OVERLAYS: dict[str, Entry] = {
    "causal_offsets": Entry(
        overlay=CausalOffsets(),
        doc="Passes q_causal_offsets, derived from the segment lengths, to the forward wrapper.",
    ),
    "layout_memo": Entry(
        overlay=layout_memo.OVERLAY,
        doc="Makes layout tables on the host and keeps them for the layers of a microbatch.",
    ),
    "scoring_plan": Entry(
        overlay=scoring_plan.OVERLAY,
        doc="Decides the scorer of a call from its layout, before anything is launched.",
    ),
    "effective_group": Entry(
        overlay=effective_group.OVERLAY,
        doc="Computes a microbatch on its own context-parallel group, and puts the other back.",
    ),
    "graph_warnings": Entry(
        overlay=graph_warnings.OVERLAY,
        doc="Warns when a configuration has CUDA graphs, DSA and context parallelism.",
    ),
}
"""Name, as under ``overlays:`` in a scenario, to overlay."""


@contextlib.contextmanager
def overlaid(names: Sequence[str], facts: Mapping[str, object]) -> Iterator[dict[str, bool]]:
    """Correct the loaded build while the context is open.

    Args:
        names: Overlays, in the order in which they are installed.
        facts: Probed facts of the bare build.

    Yields:
        Facts that the overlays bring about.

    Raises:
        OverlayRefusedError: one of them does not fit; nothing is changed then.
    """
    for name in names:
        OVERLAYS[name].overlay.check(facts)
    provided: dict[str, bool] = {}
    with contextlib.ExitStack() as stack:
        for name in names:
            stack.callback(OVERLAYS[name].overlay.install())
            provided.update(OVERLAYS[name].overlay.provides)
        yield provided


__all__ = ["OVERLAYS", "Overlay", "OverlayRefusedError", "overlaid"]
