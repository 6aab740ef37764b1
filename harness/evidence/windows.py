"""What the scoring kernel let each row see: finite scores per row, at the wrapper's output."""

from __future__ import annotations

from typing import Any

import torch

from harness.kernels.wrapping import unwrap
from harness.production.recorder import HookCall, Recorder
from harness.record.selection import WindowEvidence
from harness.reference.rows import RowTable
from harness.reference.site import Site

_ROWS_PER_PIECE = 64

_SCORES = ("input_values", "scores")
"""Parameter names under which the top-k wrapper takes the score matrix."""


def watch_windows(recorder: Recorder) -> None:
    """Have the recorder keep row windows in place of the score matrices of kernel calls."""
    recorder.reducers["indexer_forward"] = _keep_windows
    recorder.reducers["indexer_top_k"] = _drop_scores


def _keep_windows(call: HookCall) -> None:
    scores = unwrap(call.result["scores"])
    # Masked cells are -inf; a row's finite cells are the keys the kernel scored for it. In pieces,
    # since summing booleans makes an int64 copy of them.
    pieces = scores.flatten(0, -2).split(_ROWS_PER_PIECE)
    windows = torch.cat([(piece != -torch.inf).sum(dim=-1) for piece in pieces])
    call.result = {"windows": windows, "width": scores.size(-1)}


def _drop_scores(call: HookCall) -> None:
    for name in _SCORES:
        scores: Any = call.arguments.get(name)
        if isinstance(scores, torch.Tensor):
            # A meta tensor keeps shape and dtype for the record, and no memory.
            call.arguments[name] = torch.empty_like(unwrap(scores), device="meta")


def kernel_windows(recorder: Recorder, layer: int) -> torch.Tensor | None:
    """Keys that the scoring kernel showed to each local row, in local row order.

    Returns:
        ``[rows]`` int64, or None when no scoring kernel returned in this layer.
    """
    calls = [call for call in recorder.of("indexer_forward", layer=layer) if call.returned]
    if not calls:
        return None
    return torch.cat([call.result["windows"] for call in calls])


def window_evidence(windows: torch.Tensor, table: RowTable, site: Site) -> WindowEvidence:
    """Hold the kernel's windows against the limits of a rank's valid rows."""
    shown = windows[table.row][table.valid]
    limits, rows = table.limits[table.valid], table.row[table.valid]
    different = (shown != limits).nonzero().flatten()
    first = int(different[0]) if different.numel() else None
    return WindowEvidence(
        **site.fields(),
        rows=int(limits.numel()),
        rows_equal=int((shown == limits).sum()),
        rows_short=int((shown < limits).sum()),
        rows_long=int((shown > limits).sum()),
        first_different=None if first is None else int(rows[first]),
        window=None if first is None else int(shown[first]),
        limit=None if first is None else int(limits[first]),
    )
