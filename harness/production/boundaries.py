"""The lists of boundaries of a pack as a data path hands them over: aliases, views, types."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

import torch

from harness.layout import Pack
from harness.production.placement import metadata_device

Lists = dict[str, torch.Tensor | None]
"""Field of ``PackedSeqParams`` to its list, None for one that is not given."""

_WAY: ContextVar[str] = ContextVar("boundaries", default="own")
_POISON = -7
"""Stands between the elements of a strided list, where no reader may look."""


def hand_over(way: str) -> None:
    """Have new parameters hand their lists over this way, until told otherwise.

    Args:
        way: Name in ``harness.scenario.names.BOUNDARIES``.
    """
    _WAY.set(way)


def boundary_lists(pack: Pack) -> Lists:
    """Return ``cu_seqlens_*`` of a pack, ``[num_sequences + 1]`` each, real and padded."""
    way = _WAY.get()
    make = {"int64": _int64, "strided": _strided}.get(way, _int32)
    lists: Lists = {
        "cu_seqlens_q": make(pack.cu_seqlens_q),
        "cu_seqlens_kv": make(pack.cu_seqlens_k),
        "cu_seqlens_q_padded": make(pack.cu_seqlens_q_padded),
        "cu_seqlens_kv_padded": make(pack.cu_seqlens_k_padded),
    }
    return lists | _ALIASES.get(way, _none)(lists)


def _none(_lists: Lists) -> Lists:
    return {}


def _shared(lists: Lists) -> Lists:
    return {
        "cu_seqlens_kv": lists["cu_seqlens_q"],
        "cu_seqlens_kv_padded": lists["cu_seqlens_q_padded"],
    }


def _one(lists: Lists) -> Lists:
    return dict.fromkeys(lists, lists["cu_seqlens_q_padded"])


def _real_only(_lists: Lists) -> Lists:
    return {"cu_seqlens_q_padded": None, "cu_seqlens_kv_padded": None}


def _query_only(_lists: Lists) -> Lists:
    return {"cu_seqlens_kv": None, "cu_seqlens_kv_padded": None}


_ALIASES: dict[str, Callable[[Lists], Lists]] = {
    "shared": _shared,
    "one": _one,
    "real_only": _real_only,
    "query_only": _query_only,
}


def _int32(values: tuple[int, ...]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=metadata_device())


def _int64(values: tuple[int, ...]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64, device=metadata_device())


def _strided(values: tuple[int, ...]) -> torch.Tensor:
    # One element more on either side, so that the view starts inside the memory as well.
    wide = [_POISON] * (2 * len(values) + 2)
    wide[1:-1:2] = values
    return _int32(tuple(wide))[1:-1:2]
