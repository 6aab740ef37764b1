"""Expanders: besides the inverse permutation, the only functions that cost O(tokens).

Arrays are ``array('q')`` (int64), filled from ranges; ``torch.frombuffer`` or ``numpy.frombuffer``
take them without a copy.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator

from harness.layout.limits import LimitRun
from harness.layout.runs import Run
from harness.layout.segments import Segment


def expand_runs(runs: Iterable[Run]) -> array[int]:
    """Return the positions of all runs, one for each row.

    >>> list(expand_runs([(0, 2), (6, 2)]))
    [0, 1, 6, 7]
    """
    positions = array("q")
    for start, length in runs:
        positions.extend(range(start, start + length))
    return positions


def expand_limits(limits: Iterable[LimitRun]) -> array[int]:
    """Return the number of visible keys of each local row."""
    expanded = array("q")
    for run in limits:
        rising = min(run.length, run.last_limit - run.first_limit)
        expanded.extend(range(run.first_limit, run.first_limit + rising))
        expanded.extend(array("q", (run.last_limit,)) * (run.length - rising))
    return expanded


def expand_key_starts(limits: Iterable[LimitRun]) -> array[int]:
    """Return the packed position of the first key of each local row's sequence."""
    expanded = array("q")
    for run in limits:
        expanded.extend(array("q", (run.key_start,)) * run.length)
    return expanded


def expand_sequences(segments: Iterable[Segment]) -> array[int]:
    """Return the sequence index of each local row, -1 in the tail."""
    expanded = array("q")
    for segment in segments:
        expanded.extend(array("q", (segment.sequence,)) * segment.q_length)
    return expanded


def expand_valid(segments: Iterable[Segment]) -> bytearray:
    """Return 1 for each local row that is a real token and 0 for padding."""
    expanded = bytearray()
    for segment in segments:
        expanded += b"\x01" * segment.valid_rows + b"\x00" * segment.padding_rows
    return expanded


def iter_row_limits(limits: Iterable[LimitRun]) -> Iterator[tuple[int, int]]:
    """Yield (packed position of the first key, number of visible keys) of each local row."""
    for run in limits:
        for row in range(run.length):
            yield run.key_start, min(run.first_limit + row, run.last_limit)
