"""Sentences for calls of another party's hook that were not what it is due."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from harness.record.hook_call import HookCallEvidence
from reports.finding import Finding
from reports.text import number_ranges


def hook_findings(calls: Iterable[HookCallEvidence]) -> Iterator[Finding]:
    """Yield a sentence for each kind of fault, its ranks and microbatches taken together."""
    groups: dict[tuple[str, str], list[HookCallEvidence]] = {}
    for call in calls:
        for fault in call.faults:
            hook = f"{call.hook}, signature {call.signature}, cp_size {call.cp_size}"
            groups.setdefault((hook, fault), []).append(call)
    for (hook, fault), found in groups.items():
        ranks = number_ranges(sorted({call.global_rank for call in found}))
        microbatches = number_ranges(sorted({call.microbatch for call in found}))
        yield Finding(
            label="hook",
            text=f"{hook}: the dispatcher {fault}; on global_rank {ranks}, microbatch "
            f"{microbatches}",
        )
