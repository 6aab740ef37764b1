"""Whose memory a kernel was given: the caller's own tensors, parts of them, or copies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from harness.kernels.wrapping import unwrap
from harness.production.recorder import HookCall, Recorder

Callers = Mapping[str, torch.Tensor]
"""Name to a tensor that the dispatcher was given."""

_SCORED = {
    "dispatch_attention": ("q_indexer", "k_indexer", "indexer_weights"),
    "dispatch_topk": ("q", "k", "weights"),
    "dispatch_topk_loss": ("q", "k", "weights"),
}
"""Dispatcher hook to its parameters for q, k and w."""

_BOUNDARIES = ("cu_seqlens_q", "cu_seqlens_kv", "cu_seqlens_q_padded", "cu_seqlens_kv_padded")


def callers_tensors(recorder: Recorder, layer: int) -> dict[str, torch.Tensor]:
    """Tensors that the layer's last dispatcher call was given, as plain tensors by name.

    Names are ``q``, ``k``, ``w`` and those of the boundaries in ``PackedSeqParams``; empty when no
    dispatcher was asked.
    """
    found: dict[str, torch.Tensor] = {}
    for call in recorder.calls:
        if call.layer == layer and call.symbol in _SCORED:
            found = _of_call(call)
    return found


def _of_call(call: HookCall) -> dict[str, torch.Tensor]:
    given: dict[str, Any] = {
        short: call.arguments.get(name)
        for short, name in zip(("q", "k", "w"), _SCORED[call.symbol], strict=True)
    }
    params = call.arguments.get("packed_seq_params")
    given |= {name: getattr(params, name, None) for name in _BOUNDARIES}
    return {
        name: unwrap(tensor) for name, tensor in given.items() if isinstance(tensor, torch.Tensor)
    }


def shared_with(tensor: torch.Tensor, callers: Callers) -> str:
    """Name of the caller's tensor that this one is, ``part of`` it, or empty for other memory."""
    plain = unwrap(tensor)
    where = _storage(plain)
    if where is None or plain.numel() == 0:
        return ""
    part = ""
    for name, other in callers.items():
        if _storage(other) != where:
            continue
        if other.data_ptr() == plain.data_ptr() and other.numel() == plain.numel():
            return name
        part = part or f"part of {name}"
    return part


def address(tensor: torch.Tensor) -> int:
    """Address of the first element, 0 for a tensor without memory of its own."""
    plain = unwrap(tensor)
    return 0 if _storage(plain) is None else plain.data_ptr()


def _storage(tensor: torch.Tensor) -> int | None:
    """Address of a tensor's storage, None where it has none (meta, empty, wrapped)."""
    if tensor.device.type == "meta":
        return None
    try:
        return tensor.untyped_storage().data_ptr() or None
    except (NotImplementedError, RuntimeError):
        return None
