"""Makes a faulty case small: same signature, fewer of everything."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from harness.record.result import ScenarioResult
from harness.record.verdict import Verdict
from harness.repro.joint import smaller_jointly
from harness.repro.leaps import leaps
from harness.repro.memory import Memory
from harness.repro.reduce_model import plainer_model
from harness.repro.reduce_packs import rounder
from harness.repro.reductions import REDUCTIONS, Reduction
from harness.repro.search import Evaluator
from harness.repro.search_histories import sound
from harness.repro.signature import Signature, signature_of
from harness.scenario.spec import Scenario

MOST_LEAPS = 60
"""Tiny cases that are tried before the given one is cut down step by step."""
LEAP_SHARE = 0.4
"""Of the time budget, what they may take."""
HANG_S = 5.0
"""Time limit of cases whose fault is a hang, once it shows within it."""

NO_FAULT = (Verdict.PASS, Verdict.NOT_RUN)
_BY_EXPECTATION = (Verdict.WRONG_PATH, Verdict.WRONG_MEMO, Verdict.STATE_LEAK)
"""Verdicts that may come of what a scenario expects beyond its verdict."""

Ending = Literal["smallest", "budget", "evaluations", "stopped"]


class NothingToMinimiseError(ValueError):
    """The case shows no fault, or another one than was asked for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Acceptance:
    """A case counts as faulty when ``hits`` of ``trials`` runs show the signature."""

    hits: int = 1
    trials: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One case that was accepted.

    Attributes:
        text: What was changed.
        evaluations: Runs so far, those of an earlier start included.
    """

    name: str
    text: str
    scenario: Scenario
    evaluations: int
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One line of the closing table.

    Attributes:
        before: Value of the given case.
        after: Value of the smallest one.
        refused: The boldest smaller value tried last, and what it showed; empty where nothing
            smaller was left to try.
    """

    name: str
    before: str
    after: str
    refused: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class MinimiseReport:
    """How it ended.

    Attributes:
        scenario: The smallest case with the signature.
        alone: Whether it was seen in processes that ran nothing before.
        result: What it showed there; None where no time was left.
        replayed: Runs that were remembered from an earlier start.
    """

    signature: Signature
    scenario: Scenario
    ending: Ending
    evaluations: int
    replayed: int
    duration_s: float
    alone: bool
    result: ScenarioResult | None = None
    rows: tuple[Row, ...] = ()


class _EnoughError(Exception):
    """Time, evaluations or patience are used up."""


@dataclass(kw_only=True)
class Minimiser:
    """One minimisation.

    Attributes:
        scenario: The case to make small.
        evaluator: Runs candidates.
        wanted: The signature; None to run the given case for it.
        acceptance: For faults that come and go.
        budget_s: Seconds after which no further run starts.
        most: Runs after which it ends, those remembered not counted; None for no limit.
        memory: Runs of an earlier start.
        stop: Asked before each run.
        improved: Called with each accepted case.
        tell: Called behind each run with the text of the candidate.
    """

    scenario: Scenario
    evaluator: Evaluator
    wanted: Signature | None = None
    acceptance: Acceptance = field(default_factory=Acceptance)
    budget_s: float = 180.0
    most: int | None = None
    memory: Memory = field(default_factory=Memory)
    stop: Callable[[], bool] = lambda: False
    improved: Callable[[Step], None] = lambda step: None
    tell: Callable[[str, int], None] = lambda text, evaluations: None
    _alone: bool = False
    _confirmed: bool = False
    _result: ScenarioResult | None = None
    _refused: dict[str, str] = field(default_factory=dict)
    _shown: dict[str, str] = field(default_factory=dict)
    _runs: int = 0

    def run(self) -> MinimiseReport:
        """Make the case small.

        Raises:
            NothingToMinimiseError: if the given case does not show the fault.
        """
        self._begin_s = time.monotonic()
        self._ending: Ending = "smallest"
        self._current: Scenario | None = None
        with contextlib.suppress(_EnoughError):
            self._start()
            self._reduce()
        self._last_look()
        current, wanted = self._current, self.wanted
        if current is None or wanted is None:
            raise NothingToMinimiseError(
                f"{self.scenario.id}: {self._reason()} before the fault was seen; give more time"
            )
        return MinimiseReport(
            signature=wanted,
            scenario=current,
            ending=self._ending,
            evaluations=self._runs,
            replayed=self.memory.replayed,
            duration_s=time.monotonic() - self._begin_s,
            alone=self._confirmed,
            result=self._result,
            rows=tuple(self._rows(current)),
        )

    def _last_look(self) -> None:
        """See the smallest case alone although time is up: one run, and the answer is worth it."""
        if self._current is None or self._confirmed or self._ending == "stopped":
            return
        ending, self.budget_s, self.most = self._ending, float("inf"), None
        with contextlib.suppress(_EnoughError):
            self._confirm()
        self._ending = ending

    def _reason(self) -> str:
        reasons = {"budget": "the budget was used up", "stopped": "it was stopped"}
        return reasons.get(self._ending, "the evaluations were used up")

    def _start(self) -> None:
        """Find a first case with the signature: a tiny one, else the given one."""
        is_shown = self.wanted is None
        if self.wanted is None:
            self.wanted = self._signature(self.scenario)
        if self.wanted.verdict in NO_FAULT:
            raise NothingToMinimiseError(
                f"{self.scenario.id}: expected a fault to keep, found {self.wanted.verdict}; "
                "give a scenario that shows one"
            )
        if is_shown:
            self._take("given", "the given case", self.scenario)
        limit_s = time.monotonic() + LEAP_SHARE * self.budget_s
        for text, case in leaps(self.scenario)[:MOST_LEAPS]:
            if time.monotonic() > limit_s:
                break
            if self._holds(case, text) and self._real(case, text):
                self._take("leap", text, case)
                return
        if self._current is not None:
            return
        if not self._holds(self.scenario, "the given case"):
            shown = self._shown.get(self.scenario.content_hash, "nothing")
            raise NothingToMinimiseError(
                f"{self.scenario.id}: expected {self.wanted}, found {shown}; is the signature that "
                "of another case?"
            )
        self._take("given", "the given case", self.scenario)

    def _signature(self, scenario: Scenario) -> Signature:
        return self._run(scenario, "the given case", 0)

    def _reduce(self) -> None:
        """Reduce step by step until nothing smaller has the signature, and see that it is real."""
        assert self._current is not None
        safe = self._current
        self._shorten_hang()
        while True:
            self._pass()
            if self._confirm():
                safe = self._current
                if not self._joint():
                    self._round_off()
                    return
            else:
                # Something that earlier runs left in the processes has misled the steps so far;
                # from now on every case runs alone.
                self._current = safe

    def _pass(self) -> None:
        """Go through all reductions until a whole round changes nothing."""
        changed = True
        while changed:
            changed = False
            for reduction in REDUCTIONS:
                while self._one(reduction):
                    changed = True

    def _one(self, reduction: Reduction) -> bool:
        current = self._current
        assert current is not None
        self._refused.pop(reduction.name, None)
        for text, case in reduction.candidates(current):
            if reduction.name == "expectations" and not self._may_forget():
                continue
            if case == current:
                continue
            if self._holds(case, text):
                self._take(reduction.name, text, case)
                return True
            if reduction.name not in self._refused:
                shown = self._shown.get(case.content_hash, "no valid scenario")
                self._refused[reduction.name] = f"{text}: {shown}"
        return False

    def _may_forget(self) -> bool:
        assert self.wanted is not None
        return self.wanted.verdict not in _BY_EXPECTATION

    def _shorten_hang(self) -> None:
        assert self._current is not None
        assert self.wanted is not None
        limits = self._current.limits
        if self.wanted.verdict is Verdict.HANG and limits.time_s > HANG_S:
            case = replace(self._current, limits=replace(limits, time_s=HANG_S))
            if self._holds(case, f"time limit of {HANG_S:.0f} s"):
                self._take("time limit", f"{HANG_S:.0f} s", case)

    def _joint(self) -> bool:
        """Try smaller values of several sizes at once, as hypothesis draws and shrinks them."""
        current = self._current
        assert current is not None
        best = smaller_jointly(current, lambda case: self._holds(case, "sizes changed together"))
        if best is None:
            return False
        self._take("jointly", "sizes changed together", best)
        return True

    def _round_off(self) -> None:
        """Prefer lengths without padding and a plainer model where the fault shows there too."""
        self._alone = True
        for name, plainer in (("tokens", rounder), ("dimensions", plainer_model)):
            assert self._current is not None
            for text, case in plainer(self._current):
                if self._holds(case, text):
                    self._take(name, text, case)
                    self._confirmed = True

    def _real(self, case: Scenario, text: str) -> bool:
        """See a case in processes that ran nothing before.

        Where it holds behind others only, all that follows is run alone.
        """
        was_warm, self._alone = not self._alone, True
        found = self._holds(case, f"{text}, alone")
        self._alone = not (found and was_warm)
        return found

    def _confirm(self) -> bool:
        """See the present case in processes that ran nothing before."""
        assert self._current is not None
        if not self._confirmed:
            self._confirmed = self._real(self._current, "smallest so far")
        return self._confirmed

    def _take(self, name: str, text: str, case: Scenario) -> None:
        self._current, self._confirmed = case, False
        seconds = time.monotonic() - self._begin_s
        self.improved(
            Step(name=name, text=text, scenario=case, evaluations=self._runs, seconds=seconds)
        )

    def _holds(self, case: Scenario, text: str) -> bool:
        """Tell whether enough runs of a case show the signature; unsound cases never do."""
        assert self.wanted is not None
        if not sound(case):
            return False
        hits = misses = 0
        for number in range(self.acceptance.trials):
            found = self._run(case, text, number)
            self._shown[case.content_hash] = str(found)
            if self.wanted.matches(found):
                hits += 1
            else:
                misses += 1
            if hits >= self.acceptance.hits:
                return True
            if misses > self.acceptance.trials - self.acceptance.hits:
                return False
        return False

    def _run(self, case: Scenario, text: str, number: int) -> Signature:
        """Run a case, or remember what its run of that number showed."""
        known = self.memory.recall(case, number, alone=self._alone)
        self._check_end(new=known is None)
        if known is not None:
            return known
        result = self._evaluate(case)
        if result.last.cut_short is not None:
            self._ending = "stopped"
            raise _EnoughError
        self._runs += 1
        found = signature_of(result)
        self.memory.keep(case, found, text=text, alone=self._alone)
        if self.wanted is not None and self.wanted.matches(found):
            self._result = result
        self.tell(text, self._runs)
        return found

    def _evaluate(self, case: Scenario) -> ScenarioResult:
        return self.evaluator.evaluate(case, alone=self._alone)

    def _check_end(self, *, new: bool) -> None:
        ends: tuple[tuple[Ending, bool], ...] = (
            ("stopped", self.stop()),
            ("budget", time.monotonic() - self._begin_s >= self.budget_s),
            ("evaluations", new and self.most is not None and self._runs >= self.most),
        )
        for ending, is_over in ends:
            if is_over:
                self._ending = ending
                raise _EnoughError

    def _rows(self, smallest: Scenario) -> Iterator[Row]:
        for reduction in REDUCTIONS:
            yield Row(
                name=reduction.name,
                before=reduction.show(self.scenario),
                after=reduction.show(smallest),
                refused=self._refused.get(reduction.name, ""),
            )
