"""Plain lines about a run that goes on: one for each finished scenario, one a minute in between."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TextIO

from harness.record.result import Phase, ScenarioResult
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
        self._current = ""
        self._next_beat_s = 0.0

    def say(self, text: str) -> None:
        """Write one line."""
        print(text, file=self._stream, flush=True)

    def begin(self, scenario_id: str) -> None:
        """Note which scenario runs now; one that runs again keeps its number."""
        self._numbers.setdefault(scenario_id, len(self._numbers) + 1)
        self._current = scenario_id
        self._next_beat_s = time.monotonic() + HEARTBEAT_S

    def beat(self, phases: Mapping[int, Phase], since_s: float) -> None:
        """Say once a minute what still runs, and in which phase."""
        now = time.monotonic()
        if now < self._next_beat_s:
            return
        self._next_beat_s = now + HEARTBEAT_S
        where = ", ".join(f"rank {rank} in {phase}" for rank, phase in phases.items())
        self.say(f"{self._place(self._current)} {self._current}: {since_s:.0f} s, {where}")

    def _place(self, scenario_id: str) -> str:
        width = len(str(self._total))
        return f"[{self._numbers[scenario_id]:>{width}}/{self._total}]"

    def finish(self, result: ScenarioResult) -> None:
        """Report a finished scenario."""
        line = f"{self._place(result.id)} {self._describe(result)}"
        if len(result.attempts) > 1:
            line += f" (attempt {result.last.number}, isolation {result.last.isolation})"
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
