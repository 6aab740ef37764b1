"""The scorer's inputs and picks of one forward and layer, whichever path produced them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from harness.kernels.wrapping import unwrap
from harness.production.recorder import HookCall, Recorder


@dataclass(frozen=True, kw_only=True, slots=True)
class ScorerObservation:
    """What the scorer of one layer was given and gave back.

    Attributes:
        call: The hook call that produced the final selection.
        fused: Whether it was a fused scorer.
        q: ``[batch, rows, heads, dim]`` as scored.
        k: ``[batch, keys, dim]`` as scored (gathered and reordered).
        weights: ``[batch, rows, heads]`` as scored.
        picks: ``[batch, rows, topk]`` int64, -1 for an empty slot.
    """

    call: HookCall
    fused: bool
    q: torch.Tensor
    k: torch.Tensor
    weights: torch.Tensor
    picks: torch.Tensor


def observe_scorer(recorder: Recorder, layer: int) -> ScorerObservation | None:
    """Return the observation of the layer's deciding scorer call, None when none was reached."""
    found = None
    for call in recorder.calls:
        if call.layer == layer and call.returned and call.symbol in _READERS:
            # The last scorer to return decides: a declined fused call is followed by a naive one.
            found = call
    return _READERS[found.symbol](found) if found is not None else None


def _fused(call: HookCall) -> ScorerObservation:
    arguments = call.arguments
    return ScorerObservation(
        call=call,
        fused=True,
        q=unwrap(arguments["q_bshd"]),
        k=unwrap(arguments["k_bsd"]),
        weights=unwrap(arguments["w_bsh"]),
        picks=unwrap(call.result[0]).to(torch.int64),
    )


def _naive(call: HookCall) -> ScorerObservation:
    return _sequence_first(call, call.result[1])


def _naive_loss(call: HookCall) -> ScorerObservation:
    return _sequence_first(call, call.result[0])


def _sequence_first(call: HookCall, picks: torch.Tensor) -> ScorerObservation:
    arguments = call.arguments
    return ScorerObservation(
        call=call,
        fused=False,
        q=unwrap(arguments["q"]).transpose(0, 1),
        k=unwrap(arguments["k"]).transpose(0, 1),
        weights=unwrap(arguments["weights"]).transpose(0, 1),
        picks=unwrap(picks).to(torch.int64),
    )


_READERS: dict[str, Callable[[HookCall], ScorerObservation]] = {
    "fused_topk": _fused,
    "naive_topk": _naive,
    "naive_topk_loss": _naive_loss,
}


def wrapper_picks(recorder: Recorder, layer: int) -> torch.Tensor | None:
    """Picks as the top-k kernel returned them, in packed key ids, for one unbatched forward.

    Rows come in the order of the calls, which is the rank's local row order for every scorer of
    the table. Segment-local columns (the THD scorer) are shifted by the rows' starts.

    Returns:
        ``[rows, width]`` int64, or None when no top-k kernel ran.
    """
    calls = [call for call in recorder.of("indexer_top_k", layer=layer) if call.returned]
    if not calls:
        return None
    picks = [unwrap(call.result["indices"]).to(torch.int64) for call in calls]
    width = max(part.size(1) for part in picks)
    padded = [torch.nn.functional.pad(part, (0, width - part.size(1)), value=-1) for part in picks]
    rows = torch.cat(padded, dim=0)
    segmented = recorder.of("scorer_thd", layer=layer)
    if segmented:
        starts = unwrap(segmented[-1].arguments["starts"]).to(torch.int64).view(-1, 1)
        rows = torch.where(rows >= 0, rows + starts, rows)
    return rows


def rows_in_kernel_chunk(recorder: Recorder, layer: int) -> torch.Tensor | None:
    """Index of each local row inside the segment of the forward-kernel call that scored it.

    Returns:
        ``[rows]`` int64 in local row order, or None when no forward kernel ran.
    """
    indices = []
    for call in recorder.of("indexer_forward", layer=layer):
        cu_seqlens_q = call.arguments.get("cu_seqlens_q")
        q = next(iter(call.arguments.values()))
        if cu_seqlens_q is None:
            indices.append(torch.arange(q.size(1)).repeat(q.size(0)))
            continue
        for length in (cu_seqlens_q[1:] - cu_seqlens_q[:-1]).tolist():
            indices.append(torch.arange(length))
    return torch.cat(indices) if indices else None
