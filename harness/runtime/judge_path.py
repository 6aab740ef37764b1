"""Whether the path that ran is the one that should have run, from path evidence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from harness.record.deviation import Deviation
from harness.record.path import SHARED_PLAN, PathEvidence
from harness.record.result import FactValue
from harness.record.verdict import Verdict
from harness.runtime.journal import JournalContent
from harness.scenario.rules.expectations import right_plan
from harness.scenario.spec import Scenario

UNFUSED = ("decline", "unfused_bounds")
"""Plans without a fused scorer."""
_DECLINABLE = ("missing_starts", "missing_ends")
"""Calls broken on purpose that a build may decline: it then scores from bounds of its own."""
_OWN = {"q": ("q",), "k": ("k",), "w": ("w",)}
_OWN_BOUNDARIES = {
    "cu_seqlens_q": ("cu_seqlens_q", "cu_seqlens_q_padded"),
    "cu_seqlens_k": (
        "cu_seqlens_kv",
        "cu_seqlens_kv_padded",
        "cu_seqlens_q",
        "cu_seqlens_q_padded",
    ),
}
"""Parameter of the scoring kernel to the caller's tensors that it may be."""


def path_deviations(
    scenario: Scenario, journals: Sequence[JournalContent], facts: dict[str, FactValue]
) -> tuple[Deviation, ...]:
    """Return everything about the path that is not as it should be.

    Args:
        scenario: What should have run.
        journals: One for each rank.
        facts: Probed facts of the build.
    """
    paths = [path for journal in journals for path in journal.of(PathEvidence)]
    found = [_deviation("unproved", text, rank) for rank, text in _unproved(journals)]
    for path in paths:
        found += [_deviation(kind, text, path.global_rank) for kind, text in _of(scenario, path)]
        found += [
            _deviation("unproved", text, path.global_rank)
            for text in _unread_plan(path, has_plan=bool(facts.get("has_scoring_plan")))
        ]
    found += [_deviation(kind, text, rank) for rank, kind, text in _diagnostics(scenario, paths)]
    return tuple(dict.fromkeys(found))


def _deviation(kind: str, text: str, rank: int | None) -> Deviation:
    return Deviation(verdict=Verdict.WRONG_PATH, kind=kind, text=text, global_rank=rank)


def _unproved(journals: Sequence[JournalContent]) -> Iterator[tuple[int | None, str]]:
    if not journals:
        yield None, "no rank wrote a journal, so no path is proved"
    for journal in journals:
        if not journal.of(PathEvidence):
            yield journal.global_rank, "no path evidence: no scorer of the hook table was reached"


def _of(scenario: Scenario, path: PathEvidence) -> Iterator[tuple[str, str]]:
    """(kind, text) of what is wrong with one layer's path."""
    backend = scenario.kernels.dsa_kernel_backend
    if path.plan == "unknown":
        yield "unproved", f"no plan is proved: {path.reason}"
        return
    if path.backend != backend:
        yield "backend", f"backend {path.backend} ran, the scenario says {backend}"
        return
    if path.plan == SHARED_PLAN:
        if backend != "none" and not path.fused:
            yield "fallback", f"an unfused attention ran: {path.reason}"
        return
    source = scenario.model.source_layer(path.layer)
    if scenario.level == "model" and source != path.layer:
        yield "plan", f"layer {path.layer} scored for itself, expected the picks of layer {source}"
    wanted = scenario.expect.plan
    if wanted is not None and path.plan != wanted:
        yield "plan", f"plan {path.plan} was taken, expected {wanted}: {path.reason}"
    if path.ran not in ("", path.plan):
        yield (
            "contradiction",
            f"the build names plan {path.plan} ({path.reason}), its calls amount to {path.ran}",
        )
    if backend != "none" and not path.fused and not _fallback_is_right(scenario, path):
        yield "fallback", f"an unfused scorer ran, {path.scorer}: {path.reason}"
    for symbol, count in scenario.expect.kernel_calls.items():
        if path.calls.get(symbol, 0) != count:
            yield (
                "calls",
                f"{symbol} was called {path.calls.get(symbol, 0)} times, expected {count}",
            )
    if _is_thd_without_cp(scenario, path):
        yield from _storage(path)


def _fallback_is_right(scenario: Scenario, path: PathEvidence) -> bool:
    """Whether an unfused scorer is what the scenario, or else its layout, calls for."""
    if scenario.perturb.fact in _DECLINABLE or scenario.kernels.third_party_hook.hook is not None:
        # What another party's hook makes of its facts is no matter of the build's path.
        return True
    wanted = scenario.expect.plan
    if wanted is None:
        wanted = right_plan(scenario, scenario.microbatches[path.microbatch]).plan.value
    return wanted in UNFUSED


def _unread_plan(path: PathEvidence, *, has_plan: bool) -> Iterator[str]:
    if has_plan and path.plan_source != "build" and path.calls.get("fused_topk"):
        yield (
            "the build has a scoring plan, but none was resolved before its fused scorer ran: the "
            "hook table must learn where this build resolves it"
        )


def _is_thd_without_cp(scenario: Scenario, path: PathEvidence) -> bool:
    microbatch = scenario.microbatches[path.microbatch]
    cp_size = microbatch.cp or scenario.parallel.context_parallel_size
    return path.plan == "packed_thd" and cp_size == 1


def _storage(path: PathEvidence) -> Iterator[tuple[str, str]]:
    """THD without CP is one call on the caller's own tensors."""
    calls = path.calls.get("indexer_forward", 0)
    if calls != 1:
        yield "calls", f"packed_thd at cp_size 1 is one scoring call, found {calls}"
        return
    copied = [
        name
        for name, own in (_OWN | _OWN_BOUNDARIES).items()
        if path.shares.get(name, "") not in own
    ]
    if copied:
        yield (
            "storage",
            f"packed_thd at cp_size 1 scores the caller's own tensors, but {', '.join(copied)} "
            "lie in other memory",
        )


def _diagnostics(
    scenario: Scenario, paths: Sequence[PathEvidence]
) -> Iterator[tuple[int, str, str]]:
    """(rank, kind, text) of warnings about the path that are too few, too many or repeated.

    Each comes once in a process, and on rank 0 there are exactly as many as expected. Builds may
    report on rank 0 alone, so that other ranks may say less.
    """
    told = {path.global_rank: Counter[str]() for path in paths}
    for path in paths:
        told[path.global_rank].update(path.diagnostics)
    for rank, counter in told.items():
        for text, times in counter.items():
            if times > 1:
                said = f"a diagnostic was emitted {times} times in one process: {text}"
                yield rank, "repeated_diagnostic", said
    wanted = scenario.expect.diagnostics
    if wanted is None:
        return
    for rank, counter in told.items():
        if len(counter) > wanted or (rank == 0 and len(counter) < wanted):
            said = f"{len(counter)} diagnostics about the path, expected {wanted}"
            yield rank, "diagnostics", said
