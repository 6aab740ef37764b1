"""What the optional collectors found at odds with a scenario, each with the verdict it leads to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from harness.record.copies import CopyEvidence
from harness.record.deviation import Deviation
from harness.record.graphs import FAILED, GraphEvidence
from harness.record.launches import LaunchEvidence
from harness.record.result import FactValue
from harness.record.state import StateEvidence
from harness.record.transfers import TransferEvidence
from harness.record.verdict import Verdict
from harness.runtime.journal import JournalContent
from harness.scenario.spec import Scenario


def collected_deviations(
    scenario: Scenario, journals: Sequence[JournalContent], facts: Mapping[str, FactValue]
) -> tuple[Deviation, ...]:
    """Hold the collectors' evidence against the scenario, rank by rank.

    Args:
        scenario: What was run.
        journals: Of all ranks.
        facts: Probed facts of the build.
    """
    found: list[Deviation] = []
    for rank, journal in enumerate(journals):
        found += _host_reads(scenario, rank, journal, keeps=bool(facts.get("has_layout_memo")))
        found += _states(journal)
        found += _launches(journal)
        found += _graphs(scenario, rank, journal)
        found += _copies(journal)
    return tuple(found)


def _host_reads(
    scenario: Scenario, rank: int, journal: JournalContent, *, keeps: bool
) -> Iterator[Deviation]:
    """Waits of the host in each layer, as often as expected or as in the other layers.

    Where the build keeps layout tables, ``equal`` leaves out the first layer, which makes them;
    ``first_layer`` leaves it out everywhere, and allows no wait behind it.
    """
    wanted = scenario.expect.host_reads_per_layer
    if wanted is None:
        return
    seen = [record for record in journal.of(TransferEvidence) if record.layer > 0]
    if not seen:
        yield Deviation(
            verdict=Verdict.HARNESS_ERROR,
            kind="host_reads",
            text="expect.host_reads_per_layer: no transfer evidence was written",
            global_rank=rank,
        )
    if wanted == "first_layer" or (wanted == "equal" and keeps):
        first = min((record.layer for record in seen), default=0)
        seen = [record for record in seen if record.layer > first]
    for record in seen:
        due = _due(wanted, record, seen)
        if record.host_reads != due:
            yield Deviation(
                verdict=Verdict.WRONG_PATH,
                kind="host_reads",
                text=f"host_reads_per_layer: expected {due}, found {record.host_reads} in layer "
                f"{record.layer} of microbatch {record.microbatch} on cp_rank {record.cp_rank}",
                global_rank=rank,
            )


def _due(wanted: str | int, record: TransferEvidence, seen: list[TransferEvidence]) -> int:
    """As expected; for ``equal``, as in most layers of the same forward, the lower of a tie."""
    if isinstance(wanted, int):
        return wanted
    if wanted == "first_layer":
        return 0
    counts = [
        other.host_reads
        for other in seen
        if (other.cp_rank, other.microbatch) == (record.cp_rank, record.microbatch)
    ]
    return max(sorted(set(counts)), key=counts.count)


def _states(journal: JournalContent) -> Iterator[Deviation]:
    for record in journal.of(StateEvidence):
        for change in record.moved:
            yield Deviation(
                verdict=Verdict.STATE_LEAK,
                kind="state",
                text=f"{change.name}: {change.before} before, {change.after} after microbatch "
                f"{record.microbatch} on cp_rank {record.cp_rank}",
                global_rank=record.global_rank,
            )


def _launches(journal: JournalContent) -> Iterator[Deviation]:
    for record in journal.of(LaunchEvidence):
        if record.equal:
            continue
        what = f"{record.rows_different - record.rows_tied} of {record.rows} rows select other keys"
        if record.gradient_difference:
            what = f"a gradient element is off by {record.gradient_difference:g}"
        elif record.rows_different == record.rows_tied:
            what = f"an output element is off by {record.output_difference:g}"
        yield Deviation(
            verdict=Verdict.NONDETERMINISTIC,
            kind="launch",
            text=f"launch {record.launch}: {what} in layer {record.layer} of microbatch "
            f"{record.microbatch} on cp_rank {record.cp_rank}",
            global_rank=record.global_rank,
        )


def _copies(journal: JournalContent) -> Iterator[Deviation]:
    for record in journal.of(CopyEvidence):
        if record.equal is False:
            yield Deviation(
                verdict=Verdict.WRONG_VALUE,
                kind="copy",
                text=f"table {record.table} at CP {record.cp_size} arrived changed on the device",
                global_rank=record.global_rank,
            )


def _graphs(scenario: Scenario, rank: int, journal: JournalContent) -> Iterator[Deviation]:
    records = journal.of(GraphEvidence)
    wanted = scenario.expect.graph_warnings
    if wanted is not None and not records:
        yield Deviation(
            verdict=Verdict.HARNESS_ERROR,
            kind="graph_warnings",
            text="expect.graph_warnings: no graph evidence was written",
            global_rank=rank,
        )
    for record in records:
        if record.refusal:
            yield Deviation(
                verdict=Verdict.REFUSED,
                kind="graph_construction",
                text=f"cuda_graph_impl {record.impl}: {record.refusal}",
                global_rank=rank,
            )
        elif wanted is not None and record.num_warned != wanted:
            yield Deviation(
                verdict=Verdict.WRONG_PATH,
                kind="graph_warnings",
                text=f"graph_warnings: expected {wanted} about packed DSA under cuda_graph_impl "
                f"{record.impl}, found {record.num_warned}",
                global_rank=rank,
            )
        if record.capture == FAILED:
            yield Deviation(
                verdict=Verdict.CAPTURE_FAILED,
                kind="graph_capture",
                text=f"capture under {record.impl} failed: {record.reason}",
                global_rank=rank,
            )
        for replay in record.replays:
            if not replay.equal:
                yield Deviation(
                    verdict=Verdict.REPLAY_MISMATCH,
                    kind="graph_replay",
                    text=f"replay with pack {list(replay.pack)}: {replay.rows_different} of "
                    f"{replay.rows} rows differ from eager, output by "
                    f"{replay.output_difference:g}",
                    global_rank=rank,
                )
