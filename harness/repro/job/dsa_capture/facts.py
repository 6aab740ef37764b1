"""What the host knows of a call of DSA attention, without asking the device for anything."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from typing import Any

import torch

LISTS = ("cu_seqlens_q", "cu_seqlens_kv", "cu_seqlens_q_padded", "cu_seqlens_kv_padded")
"""Boundaries of the sequences of a pack, real and padded."""
MAXIMA = ("max_seqlen_q", "max_seqlen_kv")

_PLAIN = (bool, int, float, str, type(None))
_CONFIG = re.compile(
    r"dsa_|mla|lora_rank|head_dim|kv_channels|v_head|num_layers|num_attention_heads|num_query_groups"
    r"|hidden_size|ffn_|rotary|rope|layernorm_epsilon|qk_layernorm|context_parallel|tensor_model_par"
    r"|pipeline_model_par|sequence_parallel|cp_comm_type|sequence_packing|max_seqlen_per|recompute"
    r"|cuda_graph|attention_backend|attention_variant|dtype|bf16|fp16|fp8|calculate_per_token_loss"
    r"|deterministic|multi_latent|absorb"
)


def config_facts(config: Any) -> dict[str, Any]:
    """Return the plain fields of Megatron's configuration that this path depends on."""
    found: dict[str, Any] = {}
    for name, value in vars(config).items():
        if name.startswith("_") or not _CONFIG.search(name):
            continue
        if isinstance(value, torch.dtype):
            found[name] = short_dtype(value)
        elif isinstance(value, _PLAIN):
            found[name] = value
        elif isinstance(value, (list, tuple)) and len(value) <= 256:
            found[name] = [item if isinstance(item, _PLAIN) else str(item) for item in value]
        elif hasattr(value, "name") and hasattr(value, "value"):
            found[name] = str(value.name)
    return found


def call_facts(module: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return sizes, dtypes and groups of one call.

    Args:
        module: The attention module.
        given: Arguments of its forward by name.
    """
    groups = getattr(module, "pg_collection", None)
    config = module.config
    packed = given.get("packed_seq_params")
    return {
        "module": type(module).__name__,
        "training": bool(module.training),
        "grad": torch.is_grad_enabled(),
        "cp": group_facts(getattr(groups, "cp", None)),
        "tp": group_facts(getattr(groups, "tp", None), with_ranks=False),
        "configured_cp": getattr(config, "context_parallel_size", None),
        "cp_comm_type": getattr(module, "cp_comm_type", None),
        **{name: tensor_facts(given.get(name)) for name in ("query", "key", "value", "x", "qr")},
        "attention_mask": tensor_facts(given.get("attention_mask")),
        "position_ids": tensor_facts(given.get("position_ids")),
        "packed": None if packed is None else packed_facts(packed),
    }


def packed_facts(packed: Any) -> dict[str, Any]:
    """Return what Megatron's ``PackedSeqParams`` says without its lists."""
    facts: dict[str, Any] = {
        "qkv_format": getattr(packed, "qkv_format", None),
        "local_cp_size": _plain(getattr(packed, "local_cp_size", None)),
        "group": group_facts(getattr(packed, "cp_group", None)),
        "total_tokens": _plain(getattr(packed, "total_tokens", None)),
    }
    for name in MAXIMA:
        facts[name] = _plain(getattr(packed, name, None))
    facts["lists"] = {name: tensor_facts(getattr(packed, name, None)) for name in LISTS}
    told = {*LISTS, *MAXIMA, "qkv_format", "local_cp_size", "cp_group", "total_tokens"}
    facts["others"] = sorted(
        name for name, value in vars(packed).items() if value is not None and name not in told
    )
    return facts


def lists_of(packed: Any) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Return the tensors to copy, and the names that share another one's memory.

    Names with equal memory are found by address, which the host knows.
    """
    tensors: dict[str, torch.Tensor] = {}
    same: dict[str, str] = {}
    seen: dict[tuple[Any, ...], str] = {}
    for name in (*LISTS, *MAXIMA):
        tensor = getattr(packed, name, None)
        if not isinstance(tensor, torch.Tensor):
            continue
        key = _memory(tensor)
        if key in seen:
            same[name] = seen[key]
        else:
            seen[key] = name
            tensors[name] = tensor
    return tensors, same


def _memory(tensor: torch.Tensor) -> tuple[Any, ...]:
    try:
        address = tensor.data_ptr()
    except RuntimeError:
        address = 0
    # Tensors without memory of their own, such as those of FakeTensorMode, are what they are.
    return (address, tuple(tensor.shape), tensor.dtype) if address else (id(tensor),)


def tensor_facts(value: Any) -> dict[str, Any] | None:
    """Return shape, dtype and device of a tensor, None for anything else."""
    if not isinstance(value, torch.Tensor):
        return None
    return {
        "shape": list(value.shape),
        "dtype": short_dtype(value.dtype),
        "device": str(value.device),
    }


def group_facts(group: Any, *, with_ranks: bool = True) -> dict[str, Any] | None:
    """Return size, own rank and members of a process group, None where there is none."""
    if group is None:
        return None
    facts: dict[str, Any] = {"size": int(group.size()), "rank": int(group.rank())}
    if with_ranks:
        facts["ranks"] = _members(group)
    return facts


def _members(group: Any) -> list[int] | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return [int(rank) for rank in torch.distributed.get_process_group_ranks(group)]
    except (ValueError, RuntimeError, KeyError, AttributeError):
        return None


def short_dtype(dtype: torch.dtype) -> str:
    """Return a dtype without torch's name before it."""
    return str(dtype).removeprefix("torch.")


def _plain(value: Any) -> Any:
    return value if isinstance(value, _PLAIN) else None
