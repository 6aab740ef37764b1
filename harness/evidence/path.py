"""Path evidence: which scorer ran, and which of the five canonical plans that amounts to."""

from __future__ import annotations

from harness.production.recorder import Recorder
from harness.record.evidence import PathEvidence
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


def _declined(counts: dict[str, int]) -> str:
    asked = [symbol for symbol in counts if symbol.startswith("dispatch_")]
    if asked:
        return f"the fused backend was asked ({', '.join(sorted(asked))}) and declined"
    return "the fused backend was never asked"


def path_evidence(recorder: Recorder, site: Site, backend: str) -> PathEvidence:
    """Describe the path that one layer's forward took."""
    counts = recorder.counts(layer=site.layer)
    plan, reason, scorer = infer_plan(counts, backend)
    return PathEvidence(
        **site.fields(),
        backend=backend,
        plan=plan,
        plan_source="inferred",
        reason=reason,
        scorer=scorer,
        fused=plan in ("plain_causal", "packed_single", "packed_thd"),
        calls=counts,
    )
