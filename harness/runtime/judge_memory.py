"""Whether what ranks hold grows with the number of microbatches, by memory evidence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.record.deviation import Deviation
from harness.record.memory import MemoryEvidence, growth_of
from harness.record.verdict import Verdict
from harness.runtime.journal import JournalContent
from harness.scenario.spec import Scenario


def memory_deviations(
    scenario: Scenario, journals: Sequence[JournalContent]
) -> tuple[Deviation, ...]:
    """Return every figure of a rank that grows by more than the scenario allows.

    Args:
        scenario: With ``expect.memory_per_microbatch`` in bytes; nothing is judged without it.
        journals: Of all ranks.
    """
    bound = scenario.expect.memory_per_microbatch
    if bound is None:
        return ()
    return tuple(
        found
        for journal in journals
        for found in _of_rank(bound, journal.global_rank, journal.of(MemoryEvidence))
    )


def _of_rank(
    bound: int, rank: int | None, records: Sequence[MemoryEvidence]
) -> Iterator[Deviation]:
    grown = growth_of(records)
    if not grown:
        yield Deviation(
            verdict=Verdict.HARNESS_ERROR,
            kind="memory",
            text=f"expect.memory_per_microbatch: {len(records)} looks at memory say nothing of "
            "growth, 6 or more are needed",
            global_rank=rank,
        )
    for growth in grown:
        if growth.per_microbatch > bound:
            yield Deviation(
                verdict=Verdict.STATE_LEAK,
                kind="memory",
                text=f"{growth.figure} on cp_rank {growth.cp_rank} grow by "
                f"{growth.per_microbatch:.0f} bytes a microbatch, expected at most {bound}; above "
                f"all before from microbatch {growth.since} on",
                global_rank=growth.global_rank,
            )
