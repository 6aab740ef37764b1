"""One labelled sentence of a failure block."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One labelled sentence; the text may quote foreign text and is not escaped yet."""

    label: str
    text: str
