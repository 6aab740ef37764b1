"""Attempts, scenario results and the run record, with constructors that refuse contradictions."""

from __future__ import annotations

from dataclasses import dataclass, field

from harness.record.autograd import AutogradEvidence
from harness.record.collective import CollectiveCall, CollectiveFinding
from harness.record.copies import CopyEvidence
from harness.record.deviation import Deviation
from harness.record.device_fault import CoreDump, SanitizerFinding
from harness.record.environment import Environment
from harness.record.evidence import ExceptionEvidence, LayoutEvidence, NoteEvidence, ValueEvidence
from harness.record.graphs import GraphEvidence
from harness.record.groups import GroupEvidence
from harness.record.hook_call import HookCallEvidence
from harness.record.launches import LaunchEvidence
from harness.record.memo import MemoEvidence
from harness.record.memory import MemoryEvidence
from harness.record.path import CallEvidence, PathEvidence
from harness.record.perturb import PerturbEvidence
from harness.record.phase import Phase
from harness.record.rate import Rate
from harness.record.replay import ReplayEvidence
from harness.record.selection import (
    BehaviourEvidence,
    OffsetEvidence,
    SelectionEvidence,
    WindowEvidence,
)
from harness.record.state import StateEvidence
from harness.record.timing import TimingEvidence
from harness.record.transfers import TransferEvidence
from harness.record.verdict import FAULTS, Outcome, Verdict

SCHEMA_VERSION = 1

FactValue = bool | int | str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseTiming:
    """When one rank entered a phase, on the host's monotonic clock."""

    phase: Phase
    begin_s: float
    end_s: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class RankOutcome:
    """How one rank's process ended, from its exit status, its journal and its supervisor.

    Attributes:
        exit_code: Exit status, None when the process was ended by a signal.
        signal: Signal that ended the process, None otherwise.
        ended_by_harness: True when the supervisor killed it (a victim, or past a deadline).
        deadline: Phase whose limit ran out on this rank, None otherwise.
        last_phase: Phase of the last journal line.
        last_line: Last journal line, verbatim and shortened.
        completed: True when the rank wrote its closing line.
        exception: What it raised, if it raised.
        process_state: Kernel state letter when it was found stopped or in an uninterruptible wait.
        waiting_in_collective: Whether its last requested stack dump shows it inside a
            torch.distributed call; None without such a dump.
        stacks: Path of its stack dump inside the run folder.
        last_collective: Its last collective call, None when it made none.
        oom_kills: Processes that the kernel's out-of-memory killer ended in the rank's cgroup while
            the attempt ran.
        node_lost: Why nobody knows how it ended: its node went out of reach; None otherwise.
        peak_rss_bytes: Largest resident memory of its process, None without a closing line.
        ended_s: Monotonic clock of its host when the fault was journaled or the end was seen.
    """

    global_rank: int
    host: str = ""
    pid: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    ended_by_harness: bool = False
    deadline: Phase | None = None
    last_phase: Phase | None = None
    last_line: str = ""
    completed: bool = False
    exception: ExceptionEvidence | None = None
    process_state: str | None = None
    waiting_in_collective: bool | None = None
    stacks: str | None = None
    ended_s: float | None = None
    phases: tuple[PhaseTiming, ...] = ()
    last_collective: CollectiveCall | None = None
    oom_kills: int = 0
    peak_rss_bytes: int | None = None
    node_lost: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class FaultReport:
    """The first fault of an attempt and its victims."""

    verdict: Verdict
    global_rank: int | None
    phase: Phase | None
    cause: str
    """One sentence made of typed facts, never of log text."""
    victims: tuple[int, ...] = ()
    collective: CollectiveFinding | None = None
    """Where the ranks part company over their collectives, if they do."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Proof:
    """What an attempt ran on, so that nobody takes a model for a kernel.

    Attributes:
        kernels: Operation to ``hardware``, ``modelled <release> <arch>``, ``torch`` or ``none``.
        provider: ``te``, ``local`` or ``none`` (no layers were built).
        shims: Host shims active on ranks without a GPU.
        overlays: Overlays active.
        injected: Faults injected on request.
        evidence: Optional collectors that ran.
        facts: Probed facts of the build and the kernels.
        certified: Whether the models were held against real kernels, such as ``never certified``;
            empty where no model ran.
    """

    kernels: dict[str, str] = field(default_factory=dict)
    provider: str = "none"
    shims: tuple[str, ...] = ()
    overlays: tuple[str, ...] = ()
    injected: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    facts: dict[str, FactValue] = field(default_factory=dict)
    certified: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """One execution of a scenario in fresh processes (or in the worker, isolation ``none``)."""

    number: int
    verdict: Verdict
    secondary: tuple[Verdict, ...] = ()
    started_at: str = ""
    """UTC, ISO 8601."""
    duration_s: float = 0.0
    isolation: str = "scenario"
    ranks: tuple[RankOutcome, ...] = ()
    fault: FaultReport | None = None
    proof: Proof = field(default_factory=Proof)
    selections: tuple[SelectionEvidence, ...] = ()
    windows: tuple[WindowEvidence, ...] = ()
    offsets: tuple[OffsetEvidence, ...] = ()
    behaviours: tuple[BehaviourEvidence, ...] = ()
    paths: tuple[PathEvidence, ...] = ()
    layouts: tuple[LayoutEvidence, ...] = ()
    values: tuple[ValueEvidence, ...] = ()
    calls: tuple[CallEvidence, ...] = ()
    memos: tuple[MemoEvidence, ...] = ()
    perturbations: tuple[PerturbEvidence, ...] = ()
    autograd: tuple[AutogradEvidence, ...] = ()
    transfers: tuple[TransferEvidence, ...] = ()
    states: tuple[StateEvidence, ...] = ()
    launches: tuple[LaunchEvidence, ...] = ()
    graphs: tuple[GraphEvidence, ...] = ()
    copies: tuple[CopyEvidence, ...] = ()
    timings: tuple[TimingEvidence, ...] = ()
    replays: tuple[ReplayEvidence, ...] = ()
    memory: tuple[MemoryEvidence, ...] = ()
    groups: tuple[GroupEvidence, ...] = ()
    hook_calls: tuple[HookCallEvidence, ...] = ()
    deviations: tuple[Deviation, ...] = ()
    """What of path and layout memo was not as it should be."""
    notes: tuple[NoteEvidence, ...] = ()
    sanitizer: tuple[SanitizerFinding, ...] = ()
    core_dumps: tuple[CoreDump, ...] = ()
    missing_capability: str | None = None
    """What is missing when the verdict is ``not_run``."""
    cut_short: str | None = None
    """Why the run took it down before its end (killed, a signal, a lost node), so that it says
    nothing about the scenario and is no trial; None otherwise."""

    def __post_init__(self) -> None:
        """Refuse an attempt whose verdict and evidence contradict each other."""
        if self.verdict in self.secondary:
            raise ValueError(f"verdict {self.verdict} is also listed as secondary")
        if self.verdict is Verdict.PASS:
            self._check_pass()
        if self.verdict in FAULTS and self.fault is None:
            raise ValueError(f"verdict {self.verdict} needs a fault report")
        if (self.verdict is Verdict.NOT_RUN) != (self.missing_capability is not None):
            raise ValueError("not_run and missing_capability go together")
        if self.verdict is Verdict.WRONG_SELECTION and not any(
            s.total.num_wrong for s in self.selections
        ):
            raise ValueError("wrong_selection needs selection evidence with a wrong pick")
        if self.verdict is Verdict.OUT_OF_BOUNDS and not any(
            s.total.num_out_of_bounds for s in self.selections
        ):
            raise ValueError("out_of_bounds needs selection evidence with a pick out of bounds")

    def _check_pass(self) -> None:
        if self.fault is not None:
            raise ValueError("a pass carries no fault report")
        if not self.paths:
            raise ValueError("a pass needs path evidence: which scorer ran, on which rank")
        if self.secondary:
            raise ValueError("a pass has no secondary verdicts")
        if any(s.total.num_wrong for s in self.selections):
            raise ValueError("a pass has no wrong pick")
        if not all(v.within for v in self.values):
            raise ValueError("a pass has no value beyond its tolerance")
        if not all(item.equal for item in self.layouts):
            raise ValueError("a pass has no layout table that differs")


@dataclass(frozen=True, kw_only=True, slots=True)
class ScenarioResult:
    """A scenario's attempts and its outcome against expectation; one file under ``results/``."""

    schema_version: int = SCHEMA_VERSION
    id: str
    content_hash: str
    """First 12 hex digits of SHA-256 over the resolved scenario."""
    summary: str
    source: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    file: str = ""
    """Scenario file as given on the command line, with the line of the document."""
    scenario: dict[str, object]
    """The resolved scenario (``harness.scenario.spec.Scenario`` as JSON)."""
    attempts: tuple[Attempt, ...]
    outcome: Outcome
    expected: str
    """What was expected, in words, such as ``pass`` or ``known: wrong_selection``."""
    explanation: str = ""
    """Why the outcome is what it is, one or two sentences."""
    rerun: str = ""
    """Exact command that reruns this scenario."""
    decides: int | None = None
    """Number of the attempt that decides, None for the last one."""
    rates: dict[str, Rate] = field(default_factory=dict)
    """Share of each leading verdict among several attempts, most severe first; empty for one."""

    def __post_init__(self) -> None:
        """Refuse a result without an attempt, or with a judged outcome of what did not run."""
        if not self.attempts:
            raise ValueError(f"result {self.id} has no attempt")
        if (self.outcome is Outcome.NOT_RUN) != (self.verdict is Verdict.NOT_RUN):
            raise ValueError(f"outcome {self.outcome} does not go with verdict {self.verdict}")

    @property
    def last(self) -> Attempt:
        """The attempt that decides."""
        found = (attempt for attempt in self.attempts if attempt.number == self.decides)
        return next(found, self.attempts[-1])

    @property
    def verdict(self) -> Verdict:
        """Verdict of the deciding attempt."""
        return self.last.verdict


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRecord:
    """``run.json``: what was asked, on what, and how it ended.

    ``exit_code`` stays None until the run is over, so that a killed run is told from a finished
    one.
    """

    schema_version: int = SCHEMA_VERSION
    name: str
    started_at: str
    command: tuple[str, ...]
    rerun: str
    world_size: int
    num_nodes: int
    isolation: str
    environment: Environment
    scenario_ids: tuple[str, ...] = ()
    finished_at: str | None = None
    exit_code: int | None = None
    exit_meaning: str = ""
    state: str = ""
    """``running``, ``finished``, ``interrupted`` (by a signal) or ``killed``, as somebody found out
    who read the folder later; empty in records of older versions."""
    notes: tuple[str, ...] = ()
