"""Path evidence: which scorer ran, and which of the five canonical plans that amounts to."""

from __future__ import annotations

from typing import Any

import torch

from harness.evidence.calls import call_result
from harness.evidence.compiles import compiles
from harness.evidence.storage import callers_tensors, shared_with
from harness.layout import PlanDecision
from harness.production.recorder import Recorder
from harness.record.path import PathEvidence
from harness.reference.site import Site


def infer_plan(counts: dict[str, int], backend: str) -> tuple[str, str, str]:
    """Infer the canonical plan from the calls of one layer.

    Args:
        counts: Number of calls per symbol.
        backend: ``dsa_kernel_backend`` as configured.

    Returns:
        (plan, reason, scorer); plan is ``none`` where no fused backend is configured, and
        ``unknown`` when no scorer of the hook table ran.
    """
    if counts.get("scorer_single"):
        return "packed_single", "the single-sequence segment scorer ran", "scorer_single"
    if counts.get("scorer_thd"):
        return "packed_thd", "the THD segment scorer ran", "scorer_thd"
    if counts.get("scorer_global_rows"):
        reason = "scores were formed in PyTorch from explicit row bounds"
        return "unfused_bounds", reason, "scorer_global_rows"
    if counts.get("scorer_chunks") or counts.get("fused_topk"):
        return "plain_causal", "the causal kernel ran without row bounds", "scorer_chunks"
    for naive in ("naive_topk", "naive_topk_loss"):
        if counts.get(naive):
            if backend == "none":
                return "none", "no fused backend is configured", naive
            return "decline", _declined(counts), naive
    return "unknown", "no scorer of the hook table was reached", "none"


_SCORING_HOOKS = ("dispatch_attention", "dispatch_topk", "dispatch_topk_loss")


def _declined(counts: dict[str, int]) -> str:
    asked = [symbol for symbol in _SCORING_HOOKS if counts.get(symbol)]
    if asked:
        return f"the fused backend was asked ({', '.join(asked)}) and declined"
    return "the fused backend was never asked"


CANONICAL = {
    "plain_causal": "plain_causal",
    "packed_cp_single": "packed_single",
    "packed_single_segments": "packed_single",
    "packed_cp_multi": "packed_thd",
    "packed_thd_general": "packed_thd",
    "unfused_bounds": "unfused_bounds",
    "decline": "decline",
}
"""A build's own plan names, over the states of Megatron-LM pull request 6206, to canonical ones."""

_FUSED = ("plain_causal", "packed_single", "packed_thd")
_PATH_MODULES = ("dsa_scoring_plan", "dsa_kernels", "dsa_cudnn_kernels")
"""Modules whose warnings are about the path."""


def path_evidence(
    recorder: Recorder, site: Site, backend: str, right: PlanDecision | None = None
) -> PathEvidence:
    """Describe the path that one layer's forward took.

    Args:
        recorder: Calls and log lines of the forward.
        site: Rank, microbatch, layer and seed.
        backend: ``dsa_kernel_backend`` as configured.
        right: Plan that the layout calls for.
    """
    counts = recorder.counts(layer=site.layer)
    ran, reason, scorer = infer_plan(counts, backend)
    told = _told_plan(recorder, site.layer)
    plan, source = ran, "inferred"
    if told is not None:
        plan, source = CANONICAL.get(told[0], "unknown"), "build"
        if plan == "unfused_bounds" and ran == "decline" and _from_bounds(recorder, site.layer):
            # The caller's reference path is one that scores from row bounds without a kernel.
            ran = plan
        reason = told[1] if plan != "unknown" else f"the build names a plan {told[0]!r}: {told[1]}"
    distinct, fresh = compiles(recorder, site.layer)
    messages = [message for message in recorder.messages if message.layer == site.layer]
    breadcrumbs = [m.text for m in messages if m.source in _PATH_MODULES and not m.warning]
    if ran == "decline" and breadcrumbs:
        reason = f"{reason}: {breadcrumbs[-1]}"
    return PathEvidence(
        **site.fields(),
        backend=backend,
        plan=plan,
        plan_source=source,
        reason=reason,
        scorer=scorer,
        fused=ran in _FUSED,
        calls=counts,
        build_plan=None if told is None else told[0],
        ran=ran,
        right_plan="" if right is None or backend == "none" else str(right.plan),
        right_reason="" if right is None or backend == "none" else right.reason,
        dispatched=_dispatched(recorder, site.layer),
        shares=_shares(recorder, site.layer),
        compiles=distinct,
        new_compiles=fresh,
        diagnostics=tuple(m.text for m in messages if m.source in _PATH_MODULES and m.warning),
    )


def _from_bounds(recorder: Recorder, layer: int) -> bool:
    """Whether the unfused scorer was given each row's first and last key."""
    naive = [*recorder.of("naive_topk", layer=layer), *recorder.of("naive_topk_loss", layer=layer)]
    return any(call.arguments.get("varlen_starts") is not None for call in naive)


def _told_plan(recorder: Recorder, layer: int) -> tuple[str, str] | None:
    """(plan, reason) in the build's words, None where it names none or never came to it."""
    calls = [call for call in recorder.of("plan", layer=layer) if call.returned]
    if not calls:
        return None
    decision: Any = calls[-1].result
    plan = getattr(decision.plan, "value", decision.plan)
    return str(plan), str(decision.reason)


def _dispatched(recorder: Recorder, layer: int) -> dict[str, str]:
    return {
        call.symbol: call_result(call)
        for call in recorder.calls
        if call.layer == layer and call.symbol.startswith("dispatch_")
    }


def _shares(recorder: Recorder, layer: int) -> dict[str, str]:
    calls = recorder.of("indexer_forward", layer=layer)
    if not calls:
        return {}
    callers = callers_tensors(recorder, layer)
    return {
        name: shared_with(value, callers)
        for name, value in calls[0].arguments.items()
        if isinstance(value, torch.Tensor)
    }
