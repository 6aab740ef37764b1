"""Dynamic CP by the build's own means: its groups, and its configuration.

Builds name the feature ``dynamic_context_parallel``, or ``hybrid_context_parallel`` before.
"""

from __future__ import annotations

import importlib.util
import inspect
from dataclasses import replace
from typing import Any

import torch.distributed as dist
from megatron.core import parallel_state

from harness.production.groups import GroupStore

_NAMES = ("dynamic", "hybrid")
_SCHEDULER = "default_dynamic_cp"
"""The one packing scheduler that the configuration takes with Dynamic CP."""


def group_arguments() -> dict[str, bool]:
    """Arguments by which Megatron creates its groups of every effective size."""
    known = inspect.signature(parallel_state.initialize_model_parallel).parameters
    names = (f"{name}_context_parallel" for name in _NAMES)
    found = next((name for name in names if name in known), None)
    return {} if found is None else {found: True}


def build_groups(store: GroupStore) -> GroupStore:
    """Return the store with the groups that the build itself made.

    Where it makes none of a size, as before ``dynamic_context_parallel`` none of one rank, the
    store's own stays.

    Raises:
        AssertionError: the build's group of a size has other ranks than the microbatch's rows.
    """
    by_size = {}
    for size, groups in store.by_size.items():
        own = _own_group(size)
        if own is not None:
            ranks, due = (dist.get_process_group_ranks(g) for g in (own, groups.effective))
            assert ranks == due, f"the build's group of {size} has ranks {ranks}, expected {due}"
            groups = replace(groups, effective=own)
        by_size[size] = groups
    return replace(store, by_size=by_size)


def _own_group(size: int) -> Any:
    for name in _NAMES:
        get = getattr(parallel_state, f"get_{name}_data_context_parallel_groups", None)
        if get is not None:
            try:
                return get(group_size=size)
            except KeyError:
                return None
    return None


def dynamic_fields() -> dict[str, Any]:
    """Fields that the configuration is constructed with; empty where they are set afterwards.

    It asks for Transformer Engine with them, though nothing of it is used on this path.
    """
    if importlib.util.find_spec("transformer_engine") is None:
        return {}
    return {"dynamic_context_parallel": True, "min_dynamic_context_parallel_size": 1}


def set_dynamic(config: Any) -> None:
    """Give a configuration what its constructor makes of ``dynamic_context_parallel``."""
    if not config.dynamic_context_parallel:
        config.dynamic_context_parallel = True
        config.min_dynamic_context_parallel_size = 1
        config.sequence_packing_scheduler = _SCHEDULER
        config.variable_seq_lengths = True
