"""What stands in the slots of a table of ids that a backward kernel was handed."""

from __future__ import annotations

import torch

from harness.kernels.wrapping import unwrap
from harness.production.recorder import HookCall

_TABLES = {"indexer_backward": "topk_indices", "sparse_attention_backward": "topk_idxs"}
"""Kernel to its argument that holds ids."""


def slot_facts(call: HookCall) -> dict[str, int]:
    """Count the slots of a backward call, those that are negative, and those that hold key 0.

    Builds differ in what they put into empty slots: 0.19.2 key 0 of zero weight, which the kernel
    loads and adds nothing to, later ones -1, which it skips
    (https://github.com/NVIDIA/Megatron-LM/pull/6166).
    """
    ids = call.arguments.get(_TABLES.get(call.symbol, ""))
    if not isinstance(ids, torch.Tensor):
        return {}
    plain = unwrap(ids)
    return {
        "slots": plain.numel(),
        "slots_negative": int((plain < 0).sum()),
        "slots_key_zero": int((plain == 0).sum()),
    }
