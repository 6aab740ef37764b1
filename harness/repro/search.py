"""Searches random layout histories for the first one that a build gets wrong unexpectedly."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

import hypothesis

from harness.record.evidence import NEVER_STRUCK
from harness.record.result import ScenarioResult
from harness.record.verdict import Outcome, Verdict
from harness.repro.search_histories import histories, searched, sound
from harness.repro.signature import Signature, signature_of
from harness.scenario.spec import Scenario

MOST_HISTORIES = 1_000_000
JOINED = (1, 2, 4, 8)
"""How many earlier histories are put before a fault that does not show alone."""

Ending = Literal["found", "budget", "histories", "stopped", "exhausted"]


class Evaluator(Protocol):
    """Runs scenarios; ``harness.runtime.warm.WarmRanks`` is one."""

    def evaluate(self, scenario: Scenario, *, alone: bool = False) -> ScenarioResult:
        """Run a scenario, on request in processes that ran nothing before."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """The history that ended a search.

    Attributes:
        number: Its place in the order of histories, from 1.
        scenario: What to run to see it again.
        result: What that showed.
        alone: Whether it shows in processes that ran nothing before.
        joined: Earlier histories that had to be put before it.
    """

    number: int
    scenario: Scenario
    result: ScenarioResult
    signature: Signature
    alone: bool
    joined: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchReport:
    """How a search ended.

    Attributes:
        histories: Histories run.
        counts: ``outcome verdict`` to the number of histories.
        order: Hash over the histories in order; equal for equal searches.
        missing: What the first history that could not run lacked.
    """

    seed: int
    ending: Ending
    histories: int
    duration_s: float
    counts: dict[str, int] = field(default_factory=dict)
    order: str = ""
    found: Found | None = None
    missing: str | None = None


class _EnoughError(BaseException):
    """Ends the drawing; no ``Exception``, which hypothesis would take for a failing example."""


@dataclass(kw_only=True)
class Search:
    """One search.

    Attributes:
        bases: Scenarios whose histories are drawn.
        evaluator: Runs them.
        seed: Equal seeds give equal histories in equal order.
        budget_s: Seconds after which no further history starts.
        most: Histories after which it ends.
        stop: Asked before each history.
        tell: Called behind each history with how many there were so far.
    """

    bases: Sequence[Scenario]
    evaluator: Evaluator
    seed: int = 0
    budget_s: float = 60.0
    most: int = MOST_HISTORIES
    stop: Callable[[], bool] = lambda: False
    tell: Callable[[int, Counter[str]], None] = lambda number, counts: None
    _counts: Counter[str] = field(default_factory=Counter)
    _seen: set[str] = field(default_factory=set)
    _before: deque[Scenario] = field(default_factory=lambda: deque(maxlen=max(JOINED)))
    _order: Iterable[str] = ()
    _found: Found | None = None
    _missing: str | None = None
    _ending: Ending = "exhausted"

    def run(self) -> SearchReport:
        """Draw and run histories until one is wrong, or time or histories are used up."""
        self._begin_s = time.monotonic()
        order = hashlib.sha256()

        def visit(scenario: Scenario) -> None:
            # Asked of repeated and unsound draws as well: there may be many in a row.
            self._check_end()
            name = scenario.content_hash
            if name in self._seen or not sound(scenario):
                return
            self._seen.add(name)
            order.update(name.encode())
            self._visit(scenario)

        with contextlib.suppress(_EnoughError):
            draw_each(tuple(searched(base) for base in self.bases), self.seed, visit)
        return SearchReport(
            seed=self.seed,
            ending=self._ending,
            histories=sum(self._counts.values()),
            duration_s=time.monotonic() - self._begin_s,
            counts=dict(sorted(self._counts.items())),
            order=order.hexdigest()[:12],
            found=self._found,
            missing=self._missing,
        )

    def _check_end(self) -> None:
        if self.stop():
            self._end("stopped")
        if time.monotonic() - self._begin_s >= self.budget_s:
            self._end("budget")
        if len(self._seen) >= self.most:
            self._end("histories")

    def _end(self, ending: Ending) -> None:
        self._ending = ending
        raise _EnoughError

    def _visit(self, scenario: Scenario) -> None:
        result = self.evaluator.evaluate(scenario)
        if result.last.cut_short is not None:
            self._end("stopped")
        spared = _is_spared(scenario, result)
        unstruck = " (planted fault never struck)" if spared else ""
        self._counts[f"{result.outcome} {result.verdict}{unstruck}"] += 1
        number = sum(self._counts.values())
        if result.outcome is Outcome.NOT_RUN and self._missing is None:
            self._missing = result.last.missing_capability
        self.tell(number, self._counts)
        if result.outcome is Outcome.UNEXPECTED and not spared:
            self._found = self._confirmed(number, scenario, result)
            self._end("found")
        self._before.append(scenario)

    def _confirmed(self, number: int, scenario: Scenario, result: ScenarioResult) -> Found:
        """See whether a fault shows without what ran before it, else put that before it."""
        wanted = signature_of(result)

        def found(case: Scenario, seen: ScenarioResult, *, alone: bool, joined: int = 0) -> Found:
            return Found(
                number=number,
                scenario=case,
                result=seen,
                signature=wanted,
                alone=alone,
                joined=joined,
            )

        again = self.evaluator.evaluate(scenario, alone=True)
        if wanted.matches(signature_of(again)):
            return found(scenario, again, alone=True)
        for count in JOINED:
            longer = _joined([*self._before][-count:], scenario)
            if count > len(self._before) or longer is None:
                break
            again = self.evaluator.evaluate(longer, alone=True)
            if wanted.matches(signature_of(again)):
                return found(longer, again, alone=True, joined=count)
        return found(scenario, result, alone=False)


def _is_spared(scenario: Scenario, result: ScenarioResult) -> bool:
    """Tell whether a history passes because none of its packs has room for a planted fault.

    Each fault says of each microbatch when it does not strike; one that struck anywhere had to be
    found.
    """
    told = {note.text for note in result.last.notes if note.topic == NEVER_STRUCK}
    due = len(scenario.inject) * len(scenario.microbatches)
    return result.verdict is Verdict.PASS and 0 < due <= len(told)


def _joined(before: Sequence[Scenario], scenario: Scenario) -> Scenario | None:
    """Return the microbatches of several histories as one, None where that is no scenario."""
    packs = tuple(pack for earlier in before for pack in earlier.microbatches)
    joined = replace(scenario, microbatches=packs + scenario.microbatches, schedule=None)
    return joined if sound(joined) else None


def draw_each(bases: Sequence[Scenario], seed: int, visit: Callable[[Scenario], None]) -> None:
    """Call ``visit`` with one history after the other, in an order that the seed decides.

    Histories that break a rule of the file checks are among them: rejected draws would make
    hypothesis give up early where most are.
    """

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=MOST_HISTORIES,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(histories(bases))
    def each(scenario: Scenario) -> None:
        visit(scenario)

    each()
