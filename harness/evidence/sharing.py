"""Layers that attend with an earlier layer's picks (``dsa_indexer_topk_freq`` above 1)."""

from __future__ import annotations

from dataclasses import replace

import torch

from harness.evidence.observation import ScorerObservation, observe_scorer
from harness.kernels.wrapping import unwrap
from harness.production.recorder import HookCall, Recorder
from harness.record.path import SHARED_PLAN, PathEvidence
from harness.reference.site import Site


def watch_shared_picks(recorder: Recorder) -> None:
    """Keep of each sparse attention only the picks it was given, as they are at that moment.

    (0.19.2 rewrites empty slots in the scorer's own tensor for its backward pass.)
    """
    recorder.reducers["sparse_attention"] = _picks_only


def _picks_only(call: HookCall) -> None:
    picks = unwrap(call.arguments["topk_indices"]).to(torch.int64, copy=True)
    length = call.arguments.get("topk_length")
    if length is not None:
        # Slots behind a row's length are not read by the fused attention, whatever they hold.
        slots = torch.arange(picks.size(-1)).view(1, 1, -1)
        picks = torch.where(slots < unwrap(length).unsqueeze(-1), picks, -1)
    call.arguments = {"topk_indices": picks}
    call.result = None


def observe_layer(recorder: Recorder, layer: int, source: int) -> ScorerObservation | None:
    """Return what a layer attended with: its scorer's picks, or those it was handed.

    Args:
        recorder: With the calls of one forward.
        layer: The layer.
        source: Layer whose picks it is due to use, by the model's schedule of sharing.

    Returns:
        For a sharing layer, inputs of the source's scorer with the picks that the layer's own
        attention was given; None when either was never reached.
    """
    observation = observe_scorer(recorder, layer)
    if observation is not None or source == layer:
        return observation
    calls = [c for c in recorder.of("sparse_attention", layer=layer) if c.returned]
    scored = observe_scorer(recorder, source)
    if not calls or scored is None:
        return None
    return replace(scored, picks=calls[-1].arguments["topk_indices"])


def shared_path(recorder: Recorder, site: Site, backend: str, source: int) -> PathEvidence:
    """Describe the path of a layer that scored nothing."""
    counts = recorder.counts(layer=site.layer)
    return PathEvidence(
        **site.fields(),
        backend=backend,
        plan=SHARED_PLAN,
        plan_source="inferred",
        reason=f"the layer scored nothing and attended with picks of layer {source}",
        scorer="none",
        fused=bool(counts.get("flash_attention")),
        calls=counts,
    )
