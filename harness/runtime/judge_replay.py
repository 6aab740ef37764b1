"""Whether backward computed attention again from what its forward had, by replay evidence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.record.deviation import Deviation
from harness.record.replay import STEP, ReplayEvidence
from harness.record.verdict import Verdict
from harness.runtime.journal import JournalContent
from harness.runtime.judge_path import UNFUSED
from harness.scenario.rules.expectations import right_plan
from harness.scenario.spec import Scenario


def replay_deviations(
    scenario: Scenario, journals: Sequence[JournalContent]
) -> tuple[Deviation, ...]:
    """Return every layer whose replay differs, or that was not computed again as it should be.

    Args:
        scenario: What was run.
        journals: Of all ranks.
    """
    return tuple(
        found
        for journal in journals
        for record in journal.of(ReplayEvidence)
        for found in _of(scenario, record)
    )


def _of(scenario: Scenario, record: ReplayEvidence) -> Iterator[Deviation]:
    within = "a step of several" if record.scope == STEP else "backward"
    place = (
        f"layer {record.layer} of microbatch {record.microbatch} on cp_rank {record.cp_rank}, "
        f"computed again in {within}"
    )
    due = int(replayed(scenario, record.layer))
    if bool(record.replays) != bool(due):
        yield _deviation(
            Verdict.WRONG_PATH,
            f"{place}: expected {due} replays of its attention, found {record.replays}",
            record,
        )
    for difference in record.differences:
        yield _deviation(Verdict.REPLAY_MISMATCH, f"{place}: {difference}", record)
    if record.replay_path in UNFUSED and record.path not in UNFUSED:
        microbatch = scenario.microbatches[record.microbatch]
        if right_plan(scenario, microbatch).plan.value not in UNFUSED:
            yield _deviation(
                Verdict.WRONG_PATH,
                f"{place}: plan {record.path} in the forward, {record.replay_path} in the replay",
                record,
            )


def _deviation(verdict: Verdict, text: str, record: ReplayEvidence) -> Deviation:
    return Deviation(verdict=verdict, kind="replay", text=text, global_rank=record.global_rank)


def replayed(scenario: Scenario, layer: int) -> bool:
    """Whether backward has to compute a layer's attention again."""
    training = scenario.training
    if training.recompute == "selective":
        return "core_attn" in training.recompute_modules
    if training.recompute == "full":
        return training.recompute_method == "uniform" or layer <= training.recompute_num_layers
    return False
