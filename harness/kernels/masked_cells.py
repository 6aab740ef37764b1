"""What dense recompute leaves where a row may not look, release by release."""

from __future__ import annotations

import torch

from harness.kernels.poison import poisoned
from harness.kernels.rules import Arch, MaskedCells, RecomputeRules

_MINUS_INF = float("-inf")
_BLOCK = 128
_TILE = 64


def empty_scores(
    rules: RecomputeRules, arch: Arch, given: torch.Tensor | None, shape: tuple[int, int]
) -> torch.Tensor:
    """Scores before the launch, fp32 (T, width): fresh memory, old contents, or a fill."""
    fill = 0.0 if rules.masked is MaskedCells.ZERO else _MINUS_INF
    if rules.fills_caller_out:
        return torch.full(shape, fill)
    if given is not None:
        return given.clone().reshape(shape)
    # The first SM90 releases allocate zeros, the first SM100 ones nothing in particular.
    return torch.zeros(shape) if arch == "sm90" else poisoned(shape, torch.float32)


def mask_rows(rules: RecomputeRules, scores: torch.Tensor, limits: torch.Tensor, keys: int) -> None:
    """Write the masked cells of some rows of one segment; visible cells are written afterwards.

    Args:
        rules: Of the release.
        scores: (R, width), in place.
        limits: Visible keys per row, int64 (R,).
        keys: Keys of the segment.
    """
    if rules.masked is MaskedCells.ZERO:
        scores.zero_()
        scores[:, keys:] = _MINUS_INF
    elif rules.masked is MaskedCells.ZERO_IN_BLOCKS:
        scores[:, : -(-keys // _BLOCK) * _BLOCK] = 0.0
    else:
        scores.fill_(_MINUS_INF)
    if rules.masked is MaskedCells.ZERO_IN_TILES:
        columns = torch.arange(scores.shape[1])
        tile_ends = -(-limits // _TILE) * _TILE
        scores.masked_fill_(columns < tile_ends.clamp(max=keys).unsqueeze(1), 0.0)
