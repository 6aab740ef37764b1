"""Planted faults that did not happen: a green result shows nothing of them."""

from __future__ import annotations

from harness.record.evidence import NEVER_STRUCK
from harness.record.result import Attempt

_MOST_SHOWN = 3


def never_struck(attempt: Attempt) -> str:
    """Say where planted faults did not happen, empty where all of them did."""
    texts = list(dict.fromkeys(n.text for n in attempt.notes if n.topic == NEVER_STRUCK))
    more = len(texts) - _MOST_SHOWN
    return "; ".join(texts[:_MOST_SHOWN]) + (f"; and {more} more" if more > 0 else "")
