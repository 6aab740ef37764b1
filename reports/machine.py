"""``summary.json``: the run in one small document of a published schema, for scripts."""

from __future__ import annotations

from harness.record.codec import dumps
from harness.record.summary import ActionSummary, RunSummaryDocument, ScenarioSummary
from reports.actions import actions, reason_of
from reports.files import result_file
from reports.summary import RunSummary, ScenarioView


def summary_document(summary: RunSummary, documents: tuple[str, ...] = ()) -> RunSummaryDocument:
    """Return a run's summary as plain data.

    Args:
        summary: The run.
        documents: Names of the other documents beside it.
    """
    record = summary.record
    return RunSummaryDocument(
        name="" if record is None else record.name,
        exit_code=summary.exit_code,
        exit_line=summary.exit_line,
        state="" if record is None else record.state,
        started_at="" if record is None else record.started_at,
        finished_at=None if record is None else record.finished_at,
        scenarios_s=round(summary.duration_s, 3),
        wall_s=summary.wall_s,
        outcomes={str(outcome): number for outcome, number in summary.outcomes.items()},
        actions=tuple(
            ActionSummary(kind=str(action.kind), text=action.text, scenario=action.scenario)
            for action in actions(summary)
        ),
        missing=summary.missing,
        warnings=summary.warnings,
        proves=summary.proof.meaning,
        scenarios=tuple(map(_scenario, summary.scenarios)),
        documents=documents,
    )


def _scenario(item: ScenarioView) -> ScenarioSummary:
    result = item.result
    return ScenarioSummary(
        id=result.id,
        content_hash=result.content_hash,
        outcome=result.outcome,
        verdict=result.verdict,
        secondary=result.last.secondary,
        plan=item.plan,
        kernels=item.kernels,
        overlap=None if item.worst_rank is None else item.worst_rank.overlap,
        strict_overlap=item.least_strict,
        duration_s=round(item.duration_s, 3),
        attempts=len(result.attempts),
        reason=reason_of(item) if item.need.acts else "",
        record=result_file(result),
        rerun=result.rerun,
    )


def summary_text(summary: RunSummary, documents: tuple[str, ...] = ()) -> str:
    """Return the document as JSON text."""
    return dumps(summary_document(summary, documents), indent=1) + "\n"
