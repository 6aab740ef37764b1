"""What one run leaves in the history: a key, the environment, and a line per scenario."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields

from harness.record.ending import out_of_time
from harness.record.environment import Environment
from harness.record.rates import fault_rate
from harness.record.result import RunRecord, ScenarioResult
from harness.record.verdict import FAULTS, Outcome, Verdict
from reports.comparison.digest import peak_memory_bytes, phase_seconds
from reports.overlap import SHOWN_STAGE, rank_overlaps
from reports.proof import HARDWARE, MODELLED, kernels_text
from reports.store import StoredRun

SCHEMA_VERSION = 1

VERSIONS = (
    "torch", "cuda", "cudnn", "nccl", "driver", "megatron_core", "megatron_commit",
    "cudnn_frontend", "cute_dsl", "flash_mla", "transformer_engine", "tilelang",
)  # fmt: skip
"""Fields of the environment that make two nights incomparable without saying so."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NightKey:
    """What has to be equal for two nights to be compared as like with like.

    Attributes:
        arch: GPU names with their number, or ``cpu``.
        provider: ``te``, ``local`` or ``none``, as the scenarios report it.
        suite: Name of the run.
        versions: Library to version, without those that are not installed.
    """

    arch: str
    provider: str
    suite: str
    versions: dict[str, str]

    def moved(self, other: NightKey) -> dict[str, tuple[str, str]]:
        """Return what differs from an ``other``, earlier key, as (before, after)."""
        old = {"arch": other.arch, "provider": other.provider, "suite": other.suite}
        new = {"arch": self.arch, "provider": self.provider, "suite": self.suite}
        old |= other.versions
        new |= self.versions
        names = dict.fromkeys((*old, *new))
        return {
            name: (old.get(name, "none"), new.get(name, "none"))
            for name in names
            if old.get(name) != new.get(name)
        }

    @property
    def text(self) -> str:
        """One line, equal for equal keys."""
        parts = [self.arch, self.provider, self.suite]
        parts += [f"{name} {value}" for name, value in sorted(self.versions.items())]
        return ", ".join(parts)


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One scenario of one night.

    Attributes:
        attempts: Number of attempts, all of them kept.
        fault_rate: How often they faulted, in words; empty for a single attempt.
        fault: First fault in words, empty without one.
        kernel: Kernel or operand of an address fault, else empty.
        origin: ``hardware``, ``modelled <release> <arch>``, ``torch`` or ``none``.
        metrics: Name to value; finite numbers only.
        facts: Probed facts, as text.
    """

    id: str
    content_hash: str
    verdict: Verdict
    outcome: Outcome
    plan: str
    scorer: str
    origin: str
    attempts: int = 1
    fault_rate: str = ""
    fault: str = ""
    kernel: str = ""
    hosts: tuple[str, ...] = ()
    metrics: dict[str, float] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)

    @property
    def faulted(self) -> bool:
        """True for a crash, hang, memory fault and their like."""
        return self.verdict in FAULTS


@dataclass(frozen=True, kw_only=True, slots=True)
class Night:
    """One run in the history.

    Attributes:
        started_at: UTC, ISO 8601; nights are ordered by it.
        partial: Scenarios that were asked for and not judged, such as those past a budget.
        exit_code: Of the run, None when it never ended.
    """

    schema_version: int = SCHEMA_VERSION
    started_at: str
    name: str
    folder: str
    key: NightKey
    exit_code: int | None
    num_asked: int
    partial: tuple[str, ...] = ()
    entries: tuple[Entry, ...] = ()

    @property
    def good(self) -> bool:
        """True when all that was asked for was judged, and as expected or known."""
        return self.exit_code == 0 and not self.partial

    @property
    def by_id(self) -> dict[str, Entry]:
        """Entries by scenario id."""
        return {entry.id: entry for entry in self.entries}


def night_of(run: StoredRun) -> Night:
    """Return what a stored run leaves in the history.

    Raises:
        ValueError: if ``run.json`` is missing or cannot be read: a night without its environment
            could be compared with nothing.
    """
    record = run.record
    if record is None:
        raise ValueError(f"{run.folder}: expected a readable run.json, found none")
    return Night(
        started_at=record.started_at,
        name=record.name,
        folder=run.folder.name,
        key=_key(record, run.results),
        exit_code=record.exit_code,
        num_asked=len(record.scenario_ids),
        partial=(*run.missing, *_past_budget(run.results)),
        entries=tuple(entry_of(result) for result in run.results),
    )


def _past_budget(results: tuple[ScenarioResult, ...]) -> tuple[str, ...]:
    return tuple(result.id for result in results if out_of_time(result))


def _key(record: RunRecord, results: tuple[ScenarioResult, ...]) -> NightKey:
    environment = record.environment
    providers = {result.last.proof.provider for result in results} - {"none"}
    return NightKey(
        arch=_arch(environment),
        provider=" and ".join(sorted(providers)) or "none",
        suite=record.name,
        versions=versions(environment),
    )


def versions(environment: Environment) -> dict[str, str]:
    """Return the versions that a comparison depends on, without what is not installed."""
    found = {f.name: getattr(environment, f.name) for f in fields(Environment)}
    return {name: str(found[name]) for name in VERSIONS if found[name] is not None}


def _arch(environment: Environment) -> str:
    names = [f"{gpu.name} ({gpu.capability})" for gpu in environment.gpus]
    return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names)) or "cpu"


def entry_of(result: ScenarioResult) -> Entry:
    """Return the line of one scenario."""
    attempt = result.last
    fault = attempt.fault
    several = len(result.attempts) > 1
    return Entry(
        id=well_formed(result.id),
        content_hash=result.content_hash,
        verdict=attempt.verdict,
        outcome=result.outcome,
        plan=", ".join(sorted({path.plan for path in attempt.paths})) or "-",
        scorer=", ".join(sorted({path.scorer for path in attempt.paths})) or "-",
        origin=kernels_text(attempt.proof),
        attempts=len(result.attempts),
        fault_rate=fault_rate(result.attempts).text if several else "",
        fault=""
        if fault is None
        else f"{fault.verdict} on rank {fault.global_rank} in {fault.phase}: {fault.cause}",
        kernel=_kernel(result),
        hosts=tuple(sorted({rank.host for rank in attempt.ranks if rank.host})),
        metrics=_metrics(result),
        facts={name: str(value) for name, value in attempt.proof.facts.items()},
    )


def well_formed(text: str) -> str:
    """Return a text that has a UTF-8 form: lone surrogates become escapes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _kernel(result: ScenarioResult) -> str:
    for rank in result.last.ranks:
        raised = rank.exception
        if raised is not None and raised.address_fault is not None:
            return raised.address_fault.kernel
    return ""


def _metrics(result: ScenarioResult) -> dict[str, float]:
    """Numbers worth a trend. What never ran has none: a zero would look like a measurement."""
    attempt = result.last
    if attempt.verdict is Verdict.NOT_RUN:
        return {}
    ranks = rank_overlaps(attempt.selections, SHOWN_STAGE)
    found = {"pass": 1.0 if result.outcome in (Outcome.EXPECTED, Outcome.KNOWN) else 0.0}
    if ranks:
        found["overlap"] = min(rank.overlap for rank in ranks)
        found["strict_overlap"] = min(rank.strict for rank in ranks)
    if attempt.fault is None:
        found["time_s"] = attempt.duration_s
        phases = phase_seconds(attempt)
        found |= {f"{name}_s": phases[name] for name in ("layout", "score") if name in phases}
    peak = peak_memory_bytes(attempt)
    if peak:
        found["peak_rss_mib"] = peak / 2**20
    return {name: value for name, value in found.items() if math.isfinite(value)}


def is_modelled(entry: Entry) -> bool:
    """Tell whether an entry's kernels were models."""
    return entry.origin.startswith(MODELLED)


def is_hardware(entry: Entry) -> bool:
    """Tell whether an entry's kernels ran on a device."""
    return entry.origin.startswith(HARDWARE)
