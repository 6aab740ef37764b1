"""Hand-made nights: the same suite night after night, with what a test changes."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from harness.record.verdict import Outcome, Verdict
from reports.history.night import Entry, Night, NightKey

START = datetime(2026, 1, 1, tzinfo=UTC)


def key(**versions: str) -> NightKey:
    found = {"torch": "2.13.0", "megatron_core": "0.19.2", "cudnn_frontend": "1.25.0", **versions}
    return NightKey(arch="cpu", provider="local", suite="nightly", versions=found)


def entry(name: str = "causal/zigzag[cp4]", **changes: object) -> Entry:
    made = Entry(
        id=name,
        content_hash="0" * 12,
        verdict=Verdict.PASS,
        outcome=Outcome.EXPECTED,
        plan="packed_thd",
        scorer="fused",
        origin="modelled 1.25.0 sm100",
        hosts=("node-1",),
        metrics={"pass": 1.0, "overlap": 1.0, "time_s": 1.0},
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def defect(name: str = "causal/zigzag[cp4]", outcome: Outcome = Outcome.KNOWN) -> Entry:
    good = outcome is Outcome.KNOWN
    metrics = {"pass": 1.0 if good else 0.0, "overlap": 0.4, "time_s": 1.0}
    return entry(name, verdict=Verdict.WRONG_SELECTION, outcome=outcome, metrics=metrics)


def night(day: int, *entries: Entry, **changes: object) -> Night:
    made = Night(
        started_at=(START + timedelta(days=day)).isoformat(timespec="seconds"),
        name="nightly",
        folder=f"night-{day}",
        key=key(),
        exit_code=0,
        num_asked=len(entries),
        entries=entries,
    )
    return replace(made, **changes)  # type: ignore[arg-type]
