"""Overlay ``layout_memo``: layout tables are made on the host, once for each microbatch.

megatron-core 0.19.2 builds the query positions and the key reorder of a packed batch under context
parallelism anew in every layer, on the device: a loop over all ranks whose masks make the host wait
5 * (cp_size + 1) times, and a sort. What the tables depend on does not change between layers
(https://github.com/NVIDIA/Megatron-LM/issues/6392). With this overlay they are computed on the host
from the lengths, the reorder directly instead of by sorting, and kept on the microbatch's
``PackedSeqParams`` under one key for equal geometry, whichever site asks
(https://github.com/NVIDIA/Megatron-LM/pull/6206). The unfused rotary embedding reads the same
lengths in every layer; it is given the host's copy.

In a training job, before the first step::

    from harness.overlays import layout_memo
    undo = layout_memo.install()

The first layer of a microbatch still waits once for each list of boundaries; later ones do not.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import torch

from harness.overlays.boundaries import Boundaries, on_host
from harness.overlays.host_tables import gathered_index, local_positions, split, to_device
from harness.overlays.patching import VARIANT, Correction, Patches, argument_of, found

NAME = "layout_memo"
_DSA = f"{VARIANT}.dsa"
_LAYOUT = f"{VARIANT}.dsa_layout"
_ROTARY = "megatron.core.models.common.embeddings.rope_utils"
_POSITIONS = "build_packed_allgather_cp_local_positions"
_BOTH = "build_packed_allgather_cp_query_positions_and_key_reorder"
_APPLY = "_apply_rotary_pos_emb_thd"

KEPT_AS = "_dsa_layout_memo"
"""Attribute of the microbatch's ``PackedSeqParams`` that holds its tables."""

_MICROBATCH: ContextVar[Any] = ContextVar("packed_seq_params", default=None)

Memo = dict[tuple[Any, ...], Any]


def install() -> Callable[[], None]:
    """Correct the loaded Megatron in this process.

    Returns:
        A function that takes the correction out again.

    Raises:
        OverlayRefusedError: when the build has a memo, or other builders than those of 0.19.2.
    """
    return OVERLAY.install()


def _install(patches: Patches) -> None:
    attention = found(NAME, _DSA, "DSAttention")
    memo = any("memo" in name.lower() for name in vars(attention))
    OVERLAY.check({"has_layout_memo": memo})
    found(NAME, _DSA, "DSAttention.forward", ("packed_seq_params",))
    found(NAME, _LAYOUT, _POSITIONS, ("output_size", "cu_seqlens_cover_output"))
    found(NAME, _LAYOUT, _BOTH, ("key_local_output_size", "global_output_size"))
    found(NAME, _ROTARY, _APPLY, ("cu_seqlens",))
    dsa: Any = importlib.import_module(_DSA)
    layout: Any = importlib.import_module(_LAYOUT)
    rotary: Any = importlib.import_module(_ROTARY)
    patches.put(layout, _POSITIONS, _positions)
    patches.put(layout, _BOTH, _positions_and_reorder)
    patches.put(attention, "_memoized", staticmethod(_memoized))
    patches.put(attention, "forward", _within_microbatch(attention.forward))
    patches.put(dsa, "dsa_layout", _RememberedLayout(layout, attention))
    patches.put(rotary, _APPLY, _with_host_boundaries(rotary._apply_rotary_pos_emb_thd))


def _positions(
    cu_seqlens: torch.Tensor,
    cp_size: int,
    cp_rank: int,
    device: torch.device,
    output_size: int | None = None,
    *,
    cu_seqlens_cover_output: bool = False,
) -> torch.Tensor:
    """Packed positions of a rank's local rows, made on the host.

    Args:
        cu_seqlens: ``[sequences + 1]`` padded boundaries.
        cp_size: Ranks of the context-parallel group.
        cp_rank: Rank in it.
        device: Where the table is wanted.
        output_size: Local rows; as many as the sequences need, when None.
        cu_seqlens_cover_output: Promise of the caller that no row lies behind the sequences.

    Returns:
        ``[output_size]`` int64.

    Raises:
        ValueError: lengths that do not split, too few rows, or a promise that does not hold.
    """
    device = torch.device(device)
    if cp_size <= 1:
        rows = int(on_host(cu_seqlens)[-1]) if output_size is None else output_size
        return torch.arange(rows, dtype=torch.int64, device=device)
    cut = split(on_host(cu_seqlens), cp_size, output_size)
    if not cut.lengths.numel():
        # As released: without a sequence there is no position, whatever rows there are.
        return torch.empty(0, dtype=torch.int64, device=device)
    _check_promise(cu_seqlens_cover_output, cut.tail, "query")
    return to_device(local_positions(cut, cp_rank), device)


def _positions_and_reorder(
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_kv: torch.Tensor,
    cp_size: int,
    cp_rank: int,
    device: torch.device,
    local_output_size: int | None = None,
    key_local_output_size: int | None = None,
    global_output_size: int | None = None,
    *,
    query_cu_seqlens_cover_output: bool = False,
    key_cu_seqlens_cover_output: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Packed positions of local query rows, and where each packed key stands among the gathered.

    Args:
        cu_seqlens_q: ``[sequences + 1]`` padded boundaries of the queries.
        cu_seqlens_kv: The same of the keys.
        cp_size: Ranks of the context-parallel group.
        cp_rank: Rank in it.
        device: Where the tables are wanted.
        local_output_size: Local query rows.
        key_local_output_size: Local key rows; those of the queries, when None.
        global_output_size: Key rows after the gather, to be checked.
        query_cu_seqlens_cover_output: Promise that no query row lies behind the sequences.
        key_cu_seqlens_cover_output: The same of the keys.

    Returns:
        ``[local_output_size]`` and ``[cp_size * key rows]``, int64.

    Raises:
        ValueError: see ``_positions``.
        RuntimeError: the reorder has another length than ``global_output_size``.
    """
    device = torch.device(device)
    positions = _positions(
        cu_seqlens_q,
        cp_size,
        cp_rank,
        device,
        local_output_size,
        cu_seqlens_cover_output=query_cu_seqlens_cover_output,
    )
    rows = local_output_size if key_local_output_size is None else key_local_output_size
    if cp_size <= 1:
        size = int(on_host(cu_seqlens_kv)[-1]) if rows is None else rows
        reorder = torch.arange(size, dtype=torch.int64, device=device)
    else:
        cut = split(on_host(cu_seqlens_kv), cp_size, rows)
        _check_promise(key_cu_seqlens_cover_output and bool(cut.lengths.numel()), cut.tail, "key")
        index = gathered_index(cut) if cut.lengths.numel() else torch.empty(0, dtype=torch.int64)
        reorder = to_device(index, device)
    if global_output_size is not None and reorder.numel() != global_output_size:
        raise RuntimeError(
            f"Packed DSA CP key reorder length mismatch: got {reorder.numel()}, expected "
            f"{global_output_size}"
        )
    return positions, reorder


def _check_promise(covers: bool, tail: int, stream: str) -> None:
    if covers and tail:
        raise ValueError(
            f"{stream}_cu_seqlens_cover_output says that the boundaries cover every row, but "
            f"{tail} local rows lie behind them; leave the flag out"
        )


def _memoized(cache: Memo | None, key: tuple[Any, ...], build: Callable[[], Any]) -> Any:
    """Return what ``cache`` holds under ``key``, built where it holds nothing."""
    if cache is None:
        return build()
    if key not in cache:
        cache[key] = build()
    return cache[key]


class _RememberedLayout:
    """Stands for ``dsa_layout`` in the attention module: its packed builders are asked once."""

    def __init__(self, layout: Any, attention: Any) -> None:
        self._layout = layout
        self._attention = attention

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layout, name)

    def build_packed_allgather_cp_local_positions(
        self,
        cu_seqlens: torch.Tensor,
        cp_size: int,
        cp_rank: int,
        device: torch.device,
        output_size: int | None = None,
        *,
        cu_seqlens_cover_output: bool = False,
    ) -> torch.Tensor:
        """Return kept positions, or have them built."""

        def build() -> Any:
            return self._layout.build_packed_allgather_cp_local_positions(
                cu_seqlens,
                cp_size,
                cp_rank,
                device,
                output_size,
                cu_seqlens_cover_output=cu_seqlens_cover_output,
            )

        sizes = (cp_size, cp_rank, output_size)
        key = table_key("local_positions", sizes, device, cu_seqlens)
        found_tables: torch.Tensor = self._attention._memoized(_memo(key), key, build)
        return found_tables

    def build_packed_allgather_cp_query_positions_and_key_reorder(
        self,
        cu_seqlens_q: torch.Tensor,
        cu_seqlens_kv: torch.Tensor,
        cp_size: int,
        cp_rank: int,
        device: torch.device,
        local_output_size: int | None = None,
        key_local_output_size: int | None = None,
        global_output_size: int | None = None,
        *,
        query_cu_seqlens_cover_output: bool = False,
        key_cu_seqlens_cover_output: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return kept tables, or have them built.

        Tables from lengths do not depend on the cover flags, which only save the device a look;
        they are left out of the key, so that both sites share what is equal.
        """

        def build() -> Any:
            return self._layout.build_packed_allgather_cp_query_positions_and_key_reorder(
                cu_seqlens_q,
                cu_seqlens_kv,
                cp_size,
                cp_rank,
                device,
                local_output_size,
                key_local_output_size,
                global_output_size,
            )

        if key_local_output_size is None:
            key_local_output_size = local_output_size
        sizes = (cp_size, cp_rank, local_output_size, key_local_output_size, global_output_size)
        key = table_key("positions_and_reorder", sizes, device, cu_seqlens_q, cu_seqlens_kv)
        found_tables: tuple[torch.Tensor, torch.Tensor] = self._attention._memoized(
            _memo(key), key, build
        )
        return found_tables


def table_key(
    kind: str, sizes: tuple[int | None, ...], device: torch.device, *boundaries: torch.Tensor
) -> tuple[Any, ...]:
    """Return what the tables of one microbatch depend on: kind, CP, sizes, device, boundaries.

    Of the boundaries, tensor and version: a list that is written again in place, or replaced by
    another one, gets tables of its own.
    """
    return (kind, *sizes, str(device), *map(Boundaries, boundaries))


def _memo(key: tuple[Any, ...]) -> Memo | None:
    """Return the tables kept for the microbatch that attention is computed for.

    None where nothing may be kept: outside of a microbatch, and for boundaries without a version.
    """
    params = _MICROBATCH.get()
    unversioned = any(isinstance(part, Boundaries) and part.version is None for part in key)
    if params is None or unversioned:
        return None
    memo: Memo | None = getattr(params, KEPT_AS, None)
    if memo is None:
        memo = {}
        setattr(params, KEPT_AS, memo)
    return memo


def _within_microbatch(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Have the builders know whose tables they are asked for; in replays as well."""
    params_of = argument_of(forward, "packed_seq_params")

    @functools.wraps(forward)
    def within(*args: Any, **kwargs: Any) -> Any:
        token = _MICROBATCH.set(params_of(args, kwargs))
        try:
            return forward(*args, **kwargs)
        finally:
            _MICROBATCH.reset(token)

    return within


def _with_host_boundaries(apply: Callable[..., Any]) -> Callable[..., Any]:
    """Give the unfused rotary embedding, which reads its boundaries, those that are on the host."""

    @functools.wraps(apply)
    def applied(t: torch.Tensor, cu_seqlens: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return apply(t, on_host(cu_seqlens), *args, **kwargs)

    return applied


OVERLAY = Correction(
    name=NAME,
    provides={"has_layout_memo": True},
    unless="has_layout_memo",
    does="keeps the layout tables of a microbatch itself",
    patch=_install,
)
"""The overlay as the harness's table holds it."""
