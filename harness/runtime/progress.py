"""Plain lines about a run that goes on: one for each finished scenario, one a minute in between."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TextIO

from harness.record.phase import Phase
from harness.record.result import ScenarioResult
from harness.record.verdict import ExitCode, Outcome
from harness.runtime.limits import HEARTBEAT_S


def plain_line(result: ScenarioResult) -> str:
    """Describe a finished scenario in one line."""
    line = f"{result.outcome:<10} {result.verdict:<15} {result.last.duration_s:6.2f} s  {result.id}"
    if result.outcome is Outcome.UNEXPECTED and result.explanation:
        line += f": {result.explanation}"
    return line


class Progress:
    """Writes the lines, and flushes each, since torchrun pipes the output on."""

    def __init__(
        self,
        total: int,
        describe: Callable[[ScenarioResult], str] = plain_line,
        stream: TextIO | None = None,
    ) -> None:
        """Count up to ``total`` scenarios, each described by ``describe``."""
        self._total = total
        self._describe = describe
        self._stream = stream or sys.stdout
        self._numbers: dict[str, int] = {}
        # By thread: scenarios that run beside each other have one each.
        self._current: dict[int, str] = {}
        self._next_beat_s: dict[int, float] = {}

    def expect(self, scenario_ids: Iterable[str]) -> None:
        """Number scenarios in this order, whatever the order in which they begin."""
        for scenario_id in scenario_ids:
            self._numbers.setdefault(scenario_id, len(self._numbers) + 1)

    def say(self, text: str) -> None:
        """Write one line."""
        print(text, file=self._stream, flush=True)

    def begin(self, scenario_id: str) -> None:
        """Note which scenario this thread runs now; one that runs again keeps its number."""
        self.expect([scenario_id])
        thread = threading.get_ident()
        self._current[thread] = scenario_id
        self._next_beat_s[thread] = time.monotonic() + HEARTBEAT_S

    def beat(self, phases: Mapping[int, Phase], since_s: float) -> None:
        """Say once a minute what still runs, and in which phase."""
        now, thread = time.monotonic(), threading.get_ident()
        if now < self._next_beat_s.get(thread, 0.0):
            return
        self._next_beat_s[thread] = now + HEARTBEAT_S
        where = ", ".join(f"rank {rank} in {phase}" for rank, phase in phases.items())
        current = self._current[thread]
        self.say(f"{self._place(current)} {current}: {since_s:.0f} s, {where}")

    def _place(self, scenario_id: str) -> str:
        width = len(str(self._total))
        return f"[{self._numbers[scenario_id]:>{width}}/{self._total}]"

    def finish(self, result: ScenarioResult, repeat: int = 1) -> None:
        """Report a finished attempt, and what it makes of its scenario.

        Args:
            result: The scenario's result, whose last attempt has just ended.
            repeat: Attempts that are wanted.
        """
        line = f"{self._place(result.id)} {self._describe(result)}"
        made = result.attempts[-1]
        if len(result.attempts) > 1 or repeat > 1:
            of = f" of {repeat}" if repeat > 1 else ""
            other = "" if made.verdict is result.verdict else f": {made.verdict}"
            line += f" (attempt {made.number}{of}, isolation {made.isolation}{other})"
        self.say(line)


def summary_line(results: Iterable[ScenarioResult], code: ExitCode, duration_s: float) -> str:
    """Return the last line of a run: counts, duration, exit code and its meaning."""
    counts = Counter(result.outcome for result in results)
    total = sum(counts.values())
    parts = ", ".join(f"{counts[outcome]} {outcome}" for outcome in Outcome if counts[outcome])
    noun = "scenario" if total == 1 else "scenarios"
    return (
        f"{total} {noun}: {parts or 'nothing ran'} in {duration_s:.1f} s; "
        f"exit code {int(code)} ({code.meaning})"
    )
