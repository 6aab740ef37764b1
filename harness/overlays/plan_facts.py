"""Facts of a dispatcher call for its scoring plan, and bounds that follow the key boundaries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from harness.overlays.plan_resolver import CallFacts

_MARK = "_dsa_plain_causal"


def call_facts(call: Mapping[str, Any], *, plain: bool, layout: Any) -> CallFacts:
    """Read what a plan depends on from the arguments of a hook, without a host read.

    Args:
        call: Arguments by name, of any of the three scoring hooks.
        plain: The mask builder's flag, where the hook was handed it.
        layout: Megatron's layout module.
    """
    params, cp_size = call["packed_seq_params"], call["cp_size"]
    starts = call["varlen_starts"] if "varlen_starts" in call else call["starts"]
    ends = call["varlen_ends"] if "varlen_ends" in call else call["ends"]
    q, k = (call[name] for name in _OPERANDS["q_indexer" in call])
    packed = params is not None and params.qkv_format == "thd"
    is_plain = not packed and cp_size == 1 and _plain(call, starts, ends, plain)
    entries = _entries(params, layout) if packed else (None, None)
    rows = q.size(0)
    whole = call["local_packed_cp_query_len"]
    return CallFacts(
        has_bounds=is_plain or _bounded(call, starts, ends),
        plain_causal=is_plain,
        explicit_key_positions=call.get("key_positions") is not None,
        packed=packed,
        cp_size=cp_size,
        batch=q.size(1),
        rows=rows,
        keys=k.size(0),
        entries_q=entries[0],
        entries_k=entries[1],
        longest_q=_whole(params.max_seqlen_q) if packed else None,
        longest_k=_whole(params.max_seqlen_kv) if packed else None,
        slice_of=None if whole in (None, rows) else whole,
        dense_loss=_dense(call),
    )


_OPERANDS = {True: ("q_indexer", "k_indexer"), False: ("q", "k")}
"""Names of the indexer's tensors, by whether the hook computes attention too."""


def _plain(call: Mapping[str, Any], starts: Any, ends: Any, flag: bool) -> bool:
    if flag or plain_marked(starts):
        return True
    # The full hook takes no bounds at all for whole sequences under a causal mask.
    return starts is None and ends is None and _causal(call)


def _bounded(call: Mapping[str, Any], starts: Any, ends: Any) -> bool:
    return starts is not None and ends is not None and _causal(call)


def _causal(call: Mapping[str, Any]) -> bool:
    """Whether the mask is causal; the split hooks have bounds alone, of a mask that was."""
    if "attn_mask_type" not in call:
        return True
    mask = call["attn_mask_type"]
    return getattr(mask, "name", mask) == "causal"


def _entries(params: Any, layout: Any) -> tuple[int | None, int | None]:
    try:
        cu_seqlens_q, cu_seqlens_k = layout.get_packed_qk_cu_seqlens(params)
    except ValueError:
        return None, None
    return cu_seqlens_q.numel() - 1, cu_seqlens_k.numel() - 1


def _whole(longest: Any) -> int | None:
    """A longest length that is known on the host."""
    return longest if isinstance(longest, int) else None


def _dense(call: Mapping[str, Any]) -> bool:
    """Whether the call computes a dense indexer loss; the split hooks know the sparse one only."""
    if "sparse_loss" not in call or not torch.is_grad_enabled():
        return False
    return bool(call["loss_coeff"] > 0 and not call["sparse_loss"])


def mark_plain(starts: torch.Tensor) -> None:
    """Note on bounds that they are those of whole sequences."""
    setattr(starts, _MARK, True)


def plain_marked(starts: torch.Tensor | None) -> bool:
    """Whether bounds were noted to be those of whole sequences."""
    return bool(getattr(starts, _MARK, False))


def key_bounds(bounds: Any, call: Mapping[str, Any], layout: Any) -> Any:
    """Return bounds of a packed batch by its key boundaries; any other bounds as they are.

    The mask builder of 0.19.2 looks at the query boundaries alone. Rows behind all sequences keep
    what it gives them.

    Args:
        bounds: Of the mask builder: starts and ends ``[rows]``, key positions.
        call: Arguments of the mask builder.
        layout: Megatron's layout module.
    """
    params = call["packed_seq_params"]
    packed = params is not None and params.qkv_format == "thd"
    if bounds is None or not packed or call["attn_mask_type"] is None:
        return bounds
    cu_seqlens_q, cu_seqlens_k = layout.get_packed_qk_cu_seqlens(params)
    if cu_seqlens_q is cu_seqlens_k or cu_seqlens_q.numel() != cu_seqlens_k.numel():
        return bounds
    starts, ends, key_positions = bounds
    # The released ends are the position behind each row's own.
    position = ends - 1
    q = cu_seqlens_q.to(device=starts.device, dtype=torch.int64)
    k = cu_seqlens_k.to(device=starts.device, dtype=torch.int64)
    sequence = torch.searchsorted(q[1:].contiguous(), position, right=True)
    owned, sequence = sequence < q.numel() - 1, sequence.clamp(max=q.numel() - 2)
    first = k[sequence]
    last = torch.minimum(first + (position - q[sequence]) + 1, k[sequence + 1])
    return torch.where(owned, first, starts), torch.where(owned, last, ends), key_positions
