"""Fingerprints of what must outlast a microbatch: groups, configuration, globals, random state."""

from __future__ import annotations

import dataclasses
import enum
import gc
import hashlib
import sys
import types
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from harness.layout import Pack
from harness.production.hooks import HOOKS
from harness.production.packs import packed_seq_params

GROUP, SETTING, DISPATCH, RANDOM, CARRIER = "group", "config", "global", "random state", "packed"
"""First word of a name, by kind of state."""

_PLAIN = (bool, int, float, str, type(None), enum.Enum, torch.dtype)

Snapshot = dict[str, str]
"""Name to value in words; equal values have equal words within a process."""


def snapshot(module: torch.nn.Module | None, config: Any) -> Snapshot:
    """Look at everything that the module, the configuration and the DSA modules hold."""
    found: Snapshot = {}
    if module is not None:
        for path, group in _groups(module):
            found[f"{GROUP} {path}"] = _group_text(group)
    for name, value in sorted(vars(config).items()) if config is not None else ():
        found[f"{SETTING} {name}"] = _text(value)
    for name in sorted({hook.module for hook in HOOKS if hook.module in sys.modules}):
        for attribute, value in sorted(vars(sys.modules[name]).items()):
            if attribute.startswith("_") and not attribute.startswith("__") and _is_state(value):
                found[f"{DISPATCH} {name.rpartition('.')[2]}.{attribute}"] = _text(value)
    found[RANDOM] = hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest()[:12]
    return found


def _groups(module: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    """Every process group that a part of the module holds, alone or in a collection."""
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            place = f"{path}.{name}" if path else name
            if isinstance(value, dist.ProcessGroup):
                yield place, value
            elif dataclasses.is_dataclass(value) and not isinstance(value, type):
                for field, held in vars(value).items():
                    if isinstance(held, dist.ProcessGroup):
                        yield f"{place}.{field}", held


def _group_text(group: Any) -> str:
    ranks = ", ".join(str(rank) for rank in dist.get_process_group_ranks(group))
    return f"ranks {ranks} (group {group.group_name})"


def _is_state(value: Any) -> bool:
    return not isinstance(value, (types.FunctionType, type)) and not hasattr(value, "cache_clear")


def _text(value: Any) -> str:
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, (list, tuple)) and all(isinstance(item, _PLAIN) for item in value):
        return repr(value)
    if isinstance(value, types.ModuleType):
        return f"module {value.__name__}"
    return f"{type(value).__name__} at {id(value):#x}"


def carriers(params: Any, pack: Pack) -> tuple[tuple[str, ...], dict[str, tuple[str, str]]]:
    """Compare a microbatch's ``PackedSeqParams`` after use with fresh ones of the same pack.

    Returns:
        Attributes that only the used one has, and what its fields hold instead of what they were
        given.
    """
    fresh = vars(packed_seq_params(pack))
    used = vars(params)
    extra = tuple(sorted(set(used) - set(fresh)))
    changed = {}
    for name, value in fresh.items():
        held = used.get(name)
        if value is not None and not _equal(held, value):
            changed[name] = (_brief(value), _brief(held))
    return extra, changed


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.shape == other.shape and bool((one == other).all())
    return type(one) is type(other) and bool(one == other)


def _brief(value: Any) -> str:
    shown = value.tolist() if isinstance(value, torch.Tensor) else value
    return repr(shown)[:80]


def live_tensors() -> int:
    """Tensors that are alive in this process, after a collection."""
    gc.collect()
    return sum(isinstance(thing, torch.Tensor) for thing in gc.get_objects())
