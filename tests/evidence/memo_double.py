"""A layout memo for builds that have none, with the faults that memos are known for."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from harness.evidence.memo import watch_memo
from harness.layout import Pack
from harness.production import preload  # noqa: F401 (imports Megatron once, warnings silenced)
from harness.production.hooks import installed
from harness.production.packs import packed_seq_params
from harness.production.recorder import Recorder

VARIANT = "megatron.core.transformer.experimental_attention_variant"
dsa: Any = importlib.import_module(f"{VARIANT}.dsa")
dsa_layout: Any = importlib.import_module(f"{VARIANT}.dsa_layout")
FACTS = {"has_layout_memo": True}


def keep(cache: dict | None, key: tuple, build: Callable[[], Any]) -> Any:
    """What ``DSAttention._memoized`` of a healthy build does."""
    if cache is None:
        return build()
    if key not in cache:
        cache[key] = build()
    return cache[key]


def keep_nothing(cache: dict | None, key: tuple, build: Callable[[], Any]) -> Any:
    """A memo that builds for every request."""
    return build()


@contextlib.contextmanager
def memo_build(memo: Callable[..., Any] | None = keep) -> Iterator[Recorder]:
    """The installed build with a memo of its own; None for a build whose memo hook vanished."""
    recorder = Recorder()
    watch_memo(recorder)
    original = vars(dsa.DSAttention).get("_memoized")
    if memo is not None:
        dsa.DSAttention._memoized = staticmethod(memo)
    try:
        with installed(recorder, "0.99.0", FACTS):
            yield recorder
    finally:
        if original is not None:
            dsa.DSAttention._memoized = original
        elif memo is not None:
            del dsa.DSAttention._memoized


class Microbatch:
    """One microbatch as the attention layers of the double see it.

    Attributes:
        cache: The memo of the microbatch; another one's makes it stale.
    """

    def __init__(self, recorder: Recorder, pack: Pack, cp_rank: int) -> None:
        recorder.clear()
        self.cache: dict[tuple, Any] = {}
        self._recorder, self._pack, self._cp_rank = recorder, pack, cp_rank
        self._params = packed_seq_params(pack)

    def layer(
        self,
        number: int,
        *,
        flags: tuple[bool, bool] = (False, False),
        key: Callable[[tuple], tuple] = lambda key: key,
    ) -> Any:
        """Ask for the layer's tables as DSAttention does, under a key that ``key`` may spoil."""
        self._recorder.layer = number
        self._recorder.record("attention", "megatron", None, {}, lambda: None)
        rows, keys = self._pack.rows_per_rank, self._pack.key_rows_per_rank
        whole = (
            *("positions_and_reorder", self._pack.cp_size, self._cp_rank),
            *(rows, keys, self._pack.total_k, *flags),
        )
        return dsa.DSAttention._memoized(self.cache, key(whole), lambda: self._build(flags))

    def _build(self, flags: tuple[bool, bool]) -> Any:
        return dsa_layout.build_packed_allgather_cp_query_positions_and_key_reorder(
            cu_seqlens_q=self._params.cu_seqlens_q_padded,
            cu_seqlens_kv=self._params.cu_seqlens_kv_padded,
            cp_size=self._pack.cp_size,
            cp_rank=self._cp_rank,
            device=torch.device("cpu"),
            local_output_size=self._pack.rows_per_rank,
            key_local_output_size=self._pack.key_rows_per_rank,
            global_output_size=self._pack.total_k,
            query_cu_seqlens_cover_output=flags[0],
            key_cu_seqlens_cover_output=flags[1],
        )
