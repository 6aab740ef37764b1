"""Planted faults by kind, phase and rank: which there are, and what each has to show."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from planted_runs import Run, run, write_scenario

from harness.record.collective import CollectiveKind
from harness.record.phase import Phase
from harness.record.result import Attempt, RankOutcome
from harness.record.verdict import Verdict
from harness.runtime.inject import parse_injection

NUM_RANKS = 4
RANKS = (0, 1, NUM_RANKS - 1)
"""The first, a middle and the last rank."""
PHASES = (Phase.GATHER, Phase.SELECT, Phase.COMPARE)
"""Before production's collective, inside the kernels, and when the forward is over."""
HANG_S = 2.0
LIMIT_S = 3.0
"""Limits of scenarios with a fault; one that hangs costs its limit."""

SCENARIO = """\
id: {id}
summary: Planted in a test.
model: small
level: attention
kernels: {{dsa_kernel_backend: cudnn, source: modelled, modelled: {{cudnn_frontend: "1.25.0"}}}}
parallel: {{context_parallel_size: {cp}}}
microbatches: [{{sequences: [128, 64, 64]}}]
values: {{seeds: [{seeds}]}}
expect: {{verdict: pass, plan: packed_thd}}
limits: {{time_s: {time_s}}}
"""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One planted fault."""

    kind: str
    phase: Phase
    rank: int

    @property
    def injection(self) -> str:
        return f"{self.kind}@{self.rank}:{self.phase}"

    @property
    def name(self) -> str:
        return f"{self.kind.replace('_', '-')}-{self.phase}-{self.rank}"


@dataclass(frozen=True, kw_only=True)
class Ended:
    """An attempt with a faulty rank, as the checks of a kind see it."""

    case: Case
    run: Run
    attempt: Attempt

    @property
    def struck(self) -> RankOutcome:
        return self.attempt.ranks[self.case.rank]

    @property
    def peers(self) -> tuple[int, ...]:
        return tuple(rank for rank in range(NUM_RANKS) if rank != self.case.rank)

    def stacks(self) -> str:
        return (self.run.folder / self.struck.stacks).read_text()


def _exception(end: Ended) -> None:
    raised = end.struck.exception
    assert raised.type.endswith("InjectedFaultError")
    assert raised.text == f"injected exception in phase {end.case.phase}"
    assert raised.origin == "injected" and "inject.py" in raised.traceback
    if end.case.phase is Phase.GATHER:
        assert "gather_from_sequence_parallel_region" in raised.traceback
        assert set(end.attempt.fault.victims) == set(end.peers)


def _segfault(end: Ended) -> None:
    assert (end.struck.signal, end.struck.ended_by_harness) == (signal.SIGSEGV, False)
    assert "Segmentation fault" in end.stacks() and "inject.py" in end.stacks()


def _killed(end: Ended) -> None:
    assert (end.struck.signal, end.struck.ended_by_harness) == (signal.SIGKILL, False)
    assert '"injecting"' in end.struck.last_line
    assert end.struck.exception is None


def _left(end: Ended) -> None:
    assert (end.struck.exit_code, end.struck.completed) == (0, False)
    assert end.struck.exception is None


def _out_of_memory(end: Ended) -> None:
    assert end.struck.exception.out_of_memory and end.struck.exception.origin == "injected"


def _address_fault(end: Ended) -> None:
    found = end.struck.exception.address_fault
    assert (found.kernel, found.operand, found.index) == ("injected", "keys", -1)


def _stopped(end: Ended) -> None:
    assert end.struck.process_state == "T"
    assert "injecting" in end.struck.last_line
    _stayed_away(end)


def _asleep(end: Ended) -> None:
    assert end.struck.process_state is None
    assert end.struck.waiting_in_collective is False
    assert "inject.py" in end.stacks()
    _stayed_away(end)


def _stayed_away(end: Ended) -> None:
    """The peers stand in a collective that the struck rank never called."""
    finding = end.attempt.fault.collective
    assert finding.kind is CollectiveKind.MISSING
    assert (finding.ranks, finding.waiting) == ((end.case.rank,), end.peers)
    for rank in end.peers:
        peer = end.attempt.ranks[rank]
        assert peer.last_collective.end is None and peer.waiting_in_collective
        assert finding.operation == peer.last_collective.operation
    where = end.attempt.ranks[end.peers[0]].last_collective.place
    assert f"in {where}" in end.attempt.fault.cause
    assert f"which rank {end.case.rank} never called" in end.attempt.fault.cause


def _extra(end: Ended) -> None:
    finding = end.attempt.fault.collective
    assert (finding.kind, finding.ranks) == (CollectiveKind.EXTRA, (end.case.rank,))
    assert finding.label == "default_pg"
    assert end.struck.last_collective.at[0].startswith("harness/runtime/inject.py:")


def _mismatch(end: Ended) -> None:
    """Only ``gather`` has a call of production to meet; later the struck rank is alone."""
    finding = end.attempt.fault.collective
    meets = end.case.phase is Phase.GATHER
    kind = CollectiveKind.MISMATCH if meets else CollectiveKind.EXTRA
    assert (finding.kind, finding.ranks) == (kind, (end.case.rank,))
    assert finding.label == "CONTEXT_PARALLEL_GROUP"
    calls = {item.global_rank: item.call for item in finding.calls}
    assert calls[end.case.rank].inputs == ((4099,),)
    assert not meets or set(calls) == set(range(NUM_RANKS))


_PICKS = ("below", "future", "foreign", "duplicate")
"""Counts of picks, each of which has one kind of fault to itself."""


def _wrong_picks(field: str) -> Callable[[Ended], None]:
    def check(end: Ended) -> None:
        wrong = {
            (item.global_rank, item.seed): {
                name: getattr(item.total, name) for name in _PICKS if getattr(item.total, name)
            }
            for item in end.attempt.selections
            if item.stage == "final" and item.total.num_wrong
        }
        assert wrong == {where: {field: 1} for where in struck_cases(end.case)}

    return check


def _unfused(end: Ended) -> None:
    paths = end.attempt.paths
    assert len(paths) == 2 * NUM_RANKS
    unfused = {(path.global_rank, path.seed) for path in paths if not path.fused}
    assert unfused == set(struck_cases(end.case))


def struck_cases(case: Case) -> list[tuple[int, int]]:
    """Rank and seed of the forwards that a fault in values has to strike."""
    first = parse_injection(case.injection).strikes(())
    return [(case.rank, seed) for seed in ((0, 1) if first else (1,))]


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What a kind of fault has to show.

    Attributes:
        verdicts: One of which the scenario ends with.
        check: Looks at the evidence.
        values: Changes values and ends no process; the scenario then has two cases.
    """

    verdicts: tuple[Verdict, ...]
    check: Callable[[Ended], None]
    values: bool = False

    @property
    def time_s(self) -> float:
        return HANG_S if Verdict.HANG in self.verdicts else LIMIT_S


def _values(verdict: Verdict, check: Callable[[Ended], None]) -> Kind:
    return Kind(verdicts=(verdict,), check=check, values=True)


KINDS: dict[str, Kind] = {
    "exception": Kind(verdicts=(Verdict.CRASH,), check=_exception),
    "sigsegv": Kind(verdicts=(Verdict.CRASH,), check=_segfault),
    "sigkill": Kind(verdicts=(Verdict.CRASH,), check=_killed),
    "sigstop": Kind(verdicts=(Verdict.HANG,), check=_stopped),
    "sleep": Kind(verdicts=(Verdict.HANG,), check=_asleep),
    "exit0": Kind(verdicts=(Verdict.CRASH,), check=_left),
    "extra_collective": Kind(verdicts=(Verdict.HANG,), check=_extra),
    # What gloo does with tensors that do not fit: an error, or a wait without end.
    "mismatched_shape": Kind(verdicts=(Verdict.HANG, Verdict.CRASH), check=_mismatch),
    "oom": Kind(verdicts=(Verdict.OUT_OF_MEMORY,), check=_out_of_memory),
    "address_fault": Kind(verdicts=(Verdict.MEMORY_FAULT,), check=_address_fault),
    "wrong_index": _values(Verdict.WRONG_SELECTION, _wrong_picks("below")),
    "past_limit": _values(Verdict.OUT_OF_BOUNDS, _wrong_picks("future")),
    "neighbour_sequence": _values(Verdict.OUT_OF_BOUNDS, _wrong_picks("foreign")),
    "duplicate_index": _values(Verdict.WRONG_SELECTION, _wrong_picks("duplicate")),
    "unfused_path": _values(Verdict.WRONG_PATH, _unfused),
}


EARLY = {
    Case(kind="sigkill", phase=Phase.START, rank=3): Verdict.CRASH,
    Case(kind="sigkill", phase=Phase.RENDEZVOUS, rank=1): Verdict.INFRASTRUCTURE,
    Case(kind="exception", phase=Phase.RENDEZVOUS, rank=0): Verdict.INFRASTRUCTURE,
    Case(kind="oom", phase=Phase.BUILD, rank=0): Verdict.OUT_OF_MEMORY,
    Case(kind="exit0", phase=Phase.BUILD, rank=3): Verdict.CRASH,
}
"""Faults before the scenario's own phases, with their verdicts."""


def every_case() -> tuple[Case, ...]:
    """The full product."""
    return tuple(
        Case(kind=kind, phase=phase, rank=rank)
        for kind, phase, rank in itertools.product(KINDS, PHASES, RANKS)
    )


def pairwise(kinds: Sequence[str], phases: Sequence[Phase], ranks: Sequence[int]) -> list[Case]:
    """Every pair of kind and phase, kind and rank, phase and rank, each kind and phase once.

    The ranks turn by one from phase to phase and from kind to kind. Needs as many phases as ranks,
    and at least as many kinds.
    """
    assert len(kinds) >= len(phases) == len(ranks)
    return [
        Case(kind=kind, phase=phase, rank=ranks[(row + column) % len(ranks)])
        for row, kind in enumerate(kinds)
        for column, phase in enumerate(phases)
    ]


def run_cases(cases: Sequence[Case], folder: Path, *, timeout_s: float) -> Run:
    """Run all cases in one torchrun, a healthy scenario behind each."""
    scenarios = folder / "scenarios"
    scenarios.mkdir()
    paths, arguments = [], []
    for case in cases:
        kind = KINDS[case.kind]
        for prefix, time_s, values in (
            ("planted", kind.time_s, kind.values),
            ("healthy", 20.0, False),
        ):
            text = SCENARIO.replace("{seeds}", "0, 1" if values else "0")
            name = f"{prefix}/{case.name}"
            path = write_scenario(scenarios, name, cp=NUM_RANKS, time_s=time_s, text=text)
            paths.append(path)
        arguments += ["--inject", f"{case.injection}@planted/{case.name}"]
    return run(NUM_RANKS, paths, folder / "runs", *arguments, timeout_s=timeout_s)
