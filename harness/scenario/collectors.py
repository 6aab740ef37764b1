"""The optional collectors of evidence that ``--evidence`` chooses from, and who runs by default.

What a verdict needs (path, calls, selection, values) is always collected and not named here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from harness.scenario.spec import Scenario


@dataclass(frozen=True, kw_only=True, slots=True)
class Collector:
    """One optional collector.

    Attributes:
        doc: What it shows, one phrase.
        default: Whether it runs unasked: cheap, and of use in every scenario.
    """

    doc: str
    default: bool


COLLECTORS = {
    "memo": Collector(doc="builds and reuses of layout tables", default=True),
    "tables": Collector(doc="layout tables against the harness's own", default=True),
    "state": Collector(doc="what a microbatch left changed", default=True),
    "groups": Collector(doc="groups that each part went by, and what was put back", default=True),
    "memory": Collector(doc="bytes held after each microbatch", default=False),
    "live": Collector(doc="tensors alive after each microbatch", default=False),
    "transfers": Collector(doc="host reads and copies between host and device", default=False),
    "graphs": Collector(doc="warnings, blockers and replays of CUDA graphs", default=False),
    "invariance": Collector(doc="equal results of launches that should be equal", default=False),
    "copies": Collector(doc="direct copies of layout tables against pinned ones", default=False),
    "timing": Collector(doc="seconds in each phase of a forward, with their spread", default=False),
}
"""Name to collector, in the order of their tables in a report."""

ALL, NONE, DEFAULT = "all", "none", "default"
"""Words that ``--evidence`` takes instead of, or beside, names."""


class CollectorError(ValueError):
    """An ``--evidence`` value names no collector."""


def parse_collectors(text: str) -> tuple[str, ...]:
    """Read ``KIND[,KIND]``; ``default`` stands for nothing asked for.

    Raises:
        CollectorError: saying what there is.
    """
    words = tuple(word.strip() for word in text.split(",") if word.strip())
    known = (*COLLECTORS, ALL, NONE, DEFAULT)
    for word in words:
        if word not in known:
            raise CollectorError(f"--evidence: no kind {word!r}; use {', '.join(known)}")
    if not words:
        raise CollectorError(f"--evidence: expected KIND[,KIND], found {text!r}; use all or none")
    if len(words) > 1 and (ALL in words or NONE in words):
        raise CollectorError(f"--evidence: all and none stand alone, found {text!r}")
    return words


def chosen(asked: Iterable[str], scenario: Scenario) -> tuple[str, ...]:
    """Collectors that run for a scenario, in the order of ``COLLECTORS``.

    Args:
        asked: Words of ``parse_collectors``; empty means ``default``.
        scenario: What it expects is collected whatever was asked, since it could not be judged
            otherwise.
    """
    words = set(asked) or {DEFAULT}
    due = set(needed(scenario)) | (words & set(COLLECTORS))
    if ALL in words:
        due |= set(COLLECTORS)
    if DEFAULT in words:
        due |= {name for name, collector in COLLECTORS.items() if collector.default}
    return tuple(name for name in COLLECTORS if name in due)


def needed(scenario: Scenario) -> tuple[str, ...]:
    """Collectors without which the scenario could not be judged."""
    expect = scenario.expect
    asked = {
        "memo": expect.layout_builds_per_microbatch is not None,
        "transfers": expect.host_reads_per_layer is not None,
        "memory": expect.memory_per_microbatch is not None,
        "invariance": bool(scenario.compare.launches),
        "groups": scenario.parallel.dynamic_context_parallel,
        "graphs": scenario.graph.cuda_graph_impl != "none" or expect.graph_warnings is not None,
    }
    return tuple(name for name, is_asked in asked.items() if is_asked)
