"""Calls the judge, and turns a judge that fails into a harness error instead of a lost run."""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Sequence
from dataclasses import replace
from types import ModuleType

from harness.record.codec import to_jsonable
from harness.record.evidence import NoteEvidence
from harness.record.result import Attempt, Proof, ScenarioResult
from harness.record.verdict import Outcome, Verdict
from harness.runtime.attempts import Executed, utc_now
from harness.runtime.cut_short import as_cut_short
from harness.runtime.inject import for_scenario
from harness.runtime.plan import Planned


class Verdicts:
    """Judges attempts with one judge module."""

    def __init__(self, module: str, inject: Sequence[str]) -> None:
        """Import the judge.

        Raises:
            ImportError: if there is no such module.
        """
        self._judge: ModuleType = importlib.import_module(module)
        self._inject = tuple(inject)

    def attempt(self, item: Planned, number: int, done: Executed) -> Attempt:
        """Judge one executed attempt; what happened around it is noted."""
        try:
            attempt: Attempt = self._judge.judge_attempt(
                item.scenario,
                done.ranks,
                done.journals,
                number=number,
                started_at=done.started_at,
                duration_s=done.duration_s,
                isolation=done.isolation,
                injected=self._injected(item),
            )
        except Exception:  # noqa: BLE001 (the traceback becomes the evidence)
            return self.failed(item, number, traceback.format_exc(), done)
        if done.cut_short is not None:
            attempt = as_cut_short(attempt, done.ranks, done.cut_short)
        notes = done.notes
        if done.shared_with:
            names = ", ".join(other.scenario.id for other in done.shared_with)
            notes = (*notes, NoteEvidence(topic="processes shared with", text=names))
        return replace(attempt, notes=attempt.notes + notes, core_dumps=done.core_dumps)

    def failed(
        self, item: Planned, number: int, reason: str, done: Executed | None = None
    ) -> Attempt:
        """Return the attempt that stands for an error of the harness around a scenario."""
        return Attempt(
            number=number,
            verdict=Verdict.HARNESS_ERROR,
            started_at=done.started_at if done is not None else utc_now(),
            duration_s=done.duration_s if done is not None else 0.0,
            isolation=done.isolation if done is not None else "scenario",
            ranks=done.ranks if done is not None else (),
            proof=Proof(injected=self._injected(item)),
            notes=(NoteEvidence(topic="harness error", text=reason),),
        )

    def not_run(
        self, item: Planned, number: int, missing: str, *, cut_short: bool = False
    ) -> Attempt:
        """Return the attempt that stands for a scenario that had nothing to run on.

        Args:
            item: The scenario.
            number: Number of the attempt.
            missing: What is missing.
            cut_short: The run lost it on the way, so that it may be there when the run is resumed.
        """
        return Attempt(
            number=number,
            verdict=Verdict.NOT_RUN,
            started_at=utc_now(),
            proof=Proof(injected=self._injected(item)),
            missing_capability=missing,
            cut_short=missing if cut_short else None,
        )

    def result(self, item: Planned, attempts: tuple[Attempt, ...], rerun: str) -> ScenarioResult:
        """Hold a scenario's attempts against its expectation."""
        scenario = item.scenario
        try:
            result: ScenarioResult = self._judge.conclude(
                scenario, attempts, file=item.file, rerun=rerun
            )
        except Exception:  # noqa: BLE001 (the traceback becomes the evidence)
            reason = traceback.format_exc()
            attempts = (*attempts, self.failed(item, len(attempts) + 1, reason))
            return ScenarioResult(
                id=scenario.id,
                content_hash=scenario.content_hash,
                summary=scenario.summary,
                source=scenario.source,
                tags=scenario.tags,
                file=item.file,
                scenario=to_jsonable(scenario),
                attempts=attempts,
                outcome=Outcome.UNEXPECTED,
                expected=str(scenario.expect.verdict),
                explanation="the judge failed: " + reason.strip().splitlines()[-1],
                rerun=rerun,
            )
        return result

    def _injected(self, item: Planned) -> tuple[str, ...]:
        found = for_scenario((*item.scenario.inject, *self._inject), item.scenario.id)
        return tuple(str(one) for one in found if one.global_rank < item.num_ranks)
