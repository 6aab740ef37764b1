"""Causal offsets of scoring-kernel calls: passed, implied by the caller's crop, and due."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from harness.kernels.wrapping import unwrap
from harness.production.recorder import Recorder
from harness.record.selection import OffsetEvidence
from harness.reference.rows import RowTable
from harness.reference.site import Site


def offset_evidence(recorder: Recorder, table: RowTable, site: Site) -> Iterator[OffsetEvidence]:
    """Describe the offsets of each call of the scoring kernel in one layer.

    Args:
        recorder: Calls of the forward, ``indexer_forward`` among them.
        table: All rows of the rank, in local order; calls score them in that order.
        site: Where the calls were made.
    """
    first_row = 0
    for number, call in enumerate(recorder.of("indexer_forward", layer=site.layer)):
        lengths = _segment_lengths(call.arguments)
        ratio = int(call.arguments.get("ratio", 1))
        due, cropped, kept = [], [], []
        for index, (q_length, k_length) in enumerate(lengths):
            if q_length == 0:
                continue
            due.append(int(table.position[first_row]) if first_row < len(table) else 0)
            cropped.append(k_length * ratio - q_length)
            kept.append(index)
            first_row += q_length
        yield OffsetEvidence(
            **site.fields(),
            call=number,
            due=tuple(due),
            cropped=tuple(cropped),
            given=_given(call.arguments, kept),
        )


def _segment_lengths(arguments: Mapping[str, Any]) -> list[tuple[int, int]]:
    """(query rows, keys) of each batch entry or segment of a call."""
    cu_seqlens_q, cu_seqlens_k = arguments.get("cu_seqlens_q"), arguments.get("cu_seqlens_k")
    if cu_seqlens_q is None or cu_seqlens_k is None:
        tensors = [value for value in arguments.values() if isinstance(value, torch.Tensor)]
        q, k = tensors[0], tensors[1]
        return [(q.size(1), k.size(1))] * q.size(0)
    q_lengths = (cu_seqlens_q[1:] - cu_seqlens_q[:-1]).tolist()
    k_lengths = (cu_seqlens_k[1:] - cu_seqlens_k[:-1]).tolist()
    return list(zip(q_lengths, k_lengths, strict=True))


def _given(arguments: Mapping[str, Any], kept: list[int]) -> tuple[int, ...] | None:
    offsets = arguments.get("q_causal_offsets")
    if offsets is None:
        return None
    values = unwrap(offsets).tolist()
    return tuple(int(values[index]) for index in kept)
