"""Layout tables of the build against ``harness.layout``, bit for bit.

Megatron numbers tail rows in its own way and gives them bounds of no meaning, so that bounds are
compared on rows that a sequence owns.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import torch

from harness.evidence.memo import table_requests
from harness.kernels.wrapping import unwrap
from harness.layout import (
    Pack,
    expand_key_starts,
    expand_limits,
    expand_runs,
    inverse_permutation,
    megatron_position_runs,
    rank_segments,
    row_limits,
)
from harness.production.recorder import HookCall, Recorder
from harness.record.evidence import LayoutEvidence
from harness.reference.site import Site


def table_evidence(recorder: Recorder, pack: Pack, site: Site) -> Iterator[LayoutEvidence]:
    """Compare every table that one layer was served in one forward.

    Args:
        recorder: Calls of the forward.
        pack: Layout of the microbatch; for an unpacked batch, of one of its equal sequences.
        site: Rank, microbatch, layer and seed.
    """
    compare = _Comparison(pack, site)
    for call, _inner in table_requests(recorder):
        if call.layer == site.layer:
            yield from compare.tables(call.result)
    for call in recorder.calls:
        if call.layer == site.layer and call.returned:
            yield from compare.call(call)


def flag_evidence(recorder: Recorder, pack: Pack, site: Site) -> Iterator[LayoutEvidence]:
    """Ask the build's builder again, aside, under every honest combination of cover flags.

    A flag says that the boundaries cover every row; only where they do may it be set.
    """
    calls = [call for call in recorder.of("layout_tables", layer=site.layer) if call.returned]
    if not calls or pack.cp_size == 1:
        return
    call = calls[-1]
    assert call.function is not None, "hooks of the table keep their function"
    honest = (pack.query_cu_seqlens_cover_output, pack.key_cu_seqlens_cover_output)
    for query, key in product(*((False, True) if covers else (False,) for covers in honest)):
        flags = {
            "query_cu_seqlens_cover_output": query,
            "key_cu_seqlens_cover_output": key,
        }
        with recorder.aside():
            tables = call.function(**{**call.arguments, **flags})
        label = f"[cover q={query:d} k={key:d}]"
        for found in _Comparison(pack, site).tables(tables):
            yield replace(found, table=f"{found.table}{label}")


class _Comparison:
    """Holds tables of one rank against the harness's own."""

    def __init__(self, pack: Pack, site: Site) -> None:
        self._pack = pack
        self._site = site

    def call(self, call: HookCall) -> Iterator[LayoutEvidence]:
        """Compare bounds, segments or the unpacked reorder, if the call is about these."""
        if call.symbol == "zigzag_reorder":
            yield self._one("key_reorder", call.result, inverse_permutation(self._pack))
        elif call.symbol == "bounds":
            yield from self._bounds(call.result[1])
        elif call.symbol == "segment_tables":
            yield from self._segments(call.result)
        elif call.symbol == "indexer_forward" and "cu_seqlens_q" in call.arguments:
            yield from self._kernel_segments(call)

    def tables(self, result: Any) -> Iterator[LayoutEvidence]:
        """Compare query positions, and the key reorder where it is served with them."""
        parts = result if isinstance(result, tuple) else (result,)
        positions = expand_runs(megatron_position_runs(self._pack, self._site.cp_rank))
        yield self._one("query_positions", parts[0], positions)
        if len(parts) > 1:
            yield self._one("key_reorder", parts[1], inverse_permutation(self._pack))

    def _bounds(self, bounds: Any) -> Iterator[LayoutEvidence]:
        if bounds is None:
            return
        limits = row_limits(self._pack, self._site.cp_rank)
        starts, owned = expand_key_starts(limits), expand_limits(limits)
        segments = rank_segments(self._pack, self._site.cp_rank)
        rows = sum(segment.q_length for segment in segments if not segment.is_tail)
        ends = [start + limit for start, limit in zip(starts, owned, strict=True)]
        yield self._one("starts", bounds[0][:rows], starts[:rows])
        yield self._one("ends", bounds[1][:rows], ends[:rows])

    def _segments(self, layout: Any) -> Iterator[LayoutEvidence]:
        """The builder's own segment tables; entries without rows are its filling."""
        kept = layout.segment_q_lengths > 0
        segments = [s for s in rank_segments(self._pack, self._site.cp_rank) if not s.is_tail]
        tables = {
            "segment_q_lengths": [s.q_length for s in segments],
            "segment_k_lengths": [s.k_length for s in segments],
            "segment_key_starts": [s.key_start for s in segments],
        }
        for name, due in tables.items():
            yield self._one(name, getattr(layout, name)[kept], due)

    def _kernel_segments(self, call: HookCall) -> Iterator[LayoutEvidence]:
        """The boundaries that the THD kernel was given."""
        q, k = (
            unwrap(call.arguments[name]).to(torch.int64).diff()
            for name in ("cu_seqlens_q", "cu_seqlens_k")
        )
        segments = [s for s in rank_segments(self._pack, self._site.cp_rank) if not s.is_tail]
        kept = q > 0
        yield self._one("kernel_q_lengths", q[kept], [s.q_length for s in segments])
        # A sequence may end before the last key that a row could see. A kernel whose mask is
        # aligned by lengths needs the uncut number then; what is too much, top-k leaves out.
        cut = [s.k_length for s in segments]
        uncut = [s.causal_offset + s.q_length for s in segments]
        yield self._one("kernel_k_lengths", k[kept], uncut if k[kept].tolist() == uncut else cut)

    def _one(self, table: str, found: torch.Tensor, due: Sequence[int]) -> LayoutEvidence:
        detail = difference(unwrap(found), _as_tensor(due))
        return LayoutEvidence(**self._site.fields(), table=table, equal=not detail, detail=detail)


def _as_tensor(values: Sequence[int]) -> torch.Tensor:
    if isinstance(values, array) and len(values):
        return torch.frombuffer(values, dtype=torch.int64)
    return torch.tensor(list(values), dtype=torch.int64)


def difference(found: torch.Tensor, due: torch.Tensor) -> str:
    """Say how a table differs from the one that is due; empty when it does not."""
    found = found.flatten().to(torch.int64)
    if found.shape != due.shape:
        return f"expected {due.numel()} entries, found {found.numel()}"
    different = (found != due).nonzero().flatten()
    if not different.numel():
        return ""
    first = int(different[0])
    return (
        f"{different.numel()} of {due.numel()} entries differ, first at {first}: expected "
        f"{int(due[first])}, found {int(found[first])}"
    )
