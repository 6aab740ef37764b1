"""Cases of the indexer's forward: limits, offsets, THD segments, refusals and known defects."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from harness.kernels.certify.case import KernelCase
from harness.kernels.certify.cells import Look, look_masks, look_scores
from harness.kernels.certify.inputs import batched, bf16, int32, packed
from harness.kernels.releases import Arch, Release

WRAPPER = "indexer_forward_wrapper"
_HEADS = 64
"""Heads that every release and architecture serves."""

Build = Callable[[], dict[str, Any]]


def forward_cases(release: Release, arch: Arch) -> Iterator[KernelCase]:
    """Yield the cases of one release on one architecture."""
    yield from _limits()
    yield from _heads()
    yield from _packed()
    yield from _memory()
    yield from _refusals()
    yield from _special_values()
    if release.accepts_causal_offsets:
        yield from _offsets()
        yield from _leaks()
    yield from _short_maxima()


def _case(rule: str, name: str, build: Build, *, look: Look = look_scores, **more: Any) -> Any:
    return KernelCase(
        name=f"indexer_forward/{name}",
        wrapper=WRAPPER,
        basis=more.pop("basis", "contract"),
        rule=rule,
        build=build,
        look=look,
        **more,
    )


def _with(base: Build, **more: Any) -> Build:
    return lambda: {**base(), **more}


def _limits() -> Iterator[KernelCase]:
    for ratio in (1, 2, 4, 8):
        for rows, keys in ((6, 40), (40, 40), (1, 9), (130, 300)):
            build = _with(partial(batched, rows, keys, _HEADS), ratio=ratio)
            yield _case("causal limit", f"limits/ratio{ratio}/{rows}x{keys}", build)
    for rows, keys in ((41, 40), (44, 10)):
        build = _with(partial(batched, rows, keys, _HEADS), ratio=1)
        yield _case("size rule", f"size_rule/{rows}x{keys}", build)
    build = _with(partial(batched, 43, 10, _HEADS), ratio=4)
    yield _case("size rule", "size_rule/ratio4/43x10", build)


def _offsets() -> Iterator[KernelCase]:
    for offset in (0, 1, 7, 33, 34, 60, -3):
        build = _with(partial(batched, 6, 40, _HEADS), ratio=1, q_causal_offsets=int32(offset))
        yield _case("causal offset", f"offsets/{offset}", build)
    build = _with(
        partial(batched, 6, 40, _HEADS, batch=3), ratio=1, q_causal_offsets=int32(0, 11, 34)
    )
    yield _case("causal offset", "offsets/one_for_each_entry", build)
    strided = torch.arange(6, dtype=torch.int32)[::2]
    build = _with(partial(batched, 6, 40, _HEADS, batch=3), ratio=1, q_causal_offsets=strided)
    yield _case("causal offset", "offsets/strided", build)
    for name, offsets in {
        "int64": torch.tensor([3]),
        "two_for_one": int32(3, 4),
        "matrix": int32(3).view(1, 1),
    }.items():
        build = _with(partial(batched, 6, 40, _HEADS), ratio=1, q_causal_offsets=offsets)
        yield _case("causal offset", f"offsets/refused_{name}", build)


def _heads() -> Iterator[KernelCase]:
    for heads in (4, 8, 16, 32, 48, 64, 96, 128):
        build = _with(partial(batched, 8, 8, heads), ratio=1)
        yield _case("head counts", f"heads/{heads}", build)


def _packed() -> Iterator[KernelCase]:
    layouts = {
        "one": ((12,), (12,)),
        "three": ((4, 8, 5), (6, 8, 9)),
        "empty_between": ((4, 0, 5), (6, 0, 8)),
        "empty_first": ((0, 4, 5), (0, 6, 8)),
        "empty_last": ((4, 5, 0), (6, 8, 0)),
        "queries_without_keys": ((4, 3), (6, 0)),
    }
    for name, (q_lengths, k_lengths) in layouts.items():
        build = _with(partial(packed, q_lengths, k_lengths, _HEADS), ratio=1)
        yield _case("THD segments", f"thd/{name}", build)
    without = {"cu_seqlens_k": None, "max_seqlen_k": None, "max_seqlen_q": None}
    for missing in without:
        build = _with(partial(packed, (4, 5), (6, 8), _HEADS), ratio=1, **{missing: None})
        yield _case("THD segments", f"thd/refused_without_{missing}", build)


def _memory() -> Iterator[KernelCase]:
    for keys in (37, 38, 39, 40):
        build = _with(partial(batched, 5, keys, _HEADS), ratio=1)
        yield _case("rows of whole vectors", f"memory/{keys}_keys", build)
    for keys in (37, 40):
        build = _with(partial(packed, (5, 4), (keys, 8), _HEADS), ratio=1)
        yield _case("padded view reaches top-k", f"memory/thd_{keys}_keys", build, basis="deduced")


def _refusals() -> Iterator[KernelCase]:
    base = partial(batched, 6, 40, _HEADS)
    half = {name: tensor.half() for name, tensor in batched(6, 40, _HEADS).items()}
    wide = bf16(2, 1, 40, 1, 64)
    for name, change in {
        "fp16": half,
        "head_dim_64": {"q": bf16(1, 1, 6, _HEADS, 64), "k": wide},
        "two_key_heads": {"k": bf16(2, 1, 40, 2, 128)},
        "fp32_weights": {"w": torch.randn(1, 6, _HEADS, generator=torch.Generator())},
    }.items():
        yield _case("arguments", f"arguments/{name}", _with(base, ratio=1, **change))


def _special_values() -> Iterator[KernelCase]:
    def nan_key() -> dict[str, Any]:
        arguments = batched(40, 40, _HEADS)
        arguments["k"][0, 3] = float("nan")
        return {**arguments, "ratio": 1}

    def scaled() -> dict[str, Any]:
        return {**batched(6, 6, _HEADS), "ratio": 1, "sm_scale": 0.25}

    yield _case("relu maps NaN to 0", "values/nan_key", nan_key)
    yield _case("sm_scale on the sum", "values/sm_scale", scaled)


def _leaks() -> Iterator[KernelCase]:
    """Where limits of one tile straddle a 64-column block, by the offset's rest mod 4."""
    for offset in (60, 61, 62, 63):
        build = _with(partial(batched, 8, 128, 32), ratio=1, q_causal_offsets=int32(offset))
        yield _case(
            "mask_leak", f"mask_leak/offset{offset}", build, look=look_masks, basis="deduced"
        )


def _short_maxima() -> Iterator[KernelCase]:
    # The longer segment is the first: what runs past its row stays in the tensor.
    for name, change in {"max_seqlen_k": 6, "max_seqlen_q": 128}.items():
        q_lengths, k_lengths = (200, 8), (260, 8)
        if name == "max_seqlen_k":
            q_lengths, k_lengths = (12, 8), (12, 6)
        build = _with(partial(packed, q_lengths, k_lengths, _HEADS), ratio=1, **{name: change})
        rule = "short_max_k" if name == "max_seqlen_k" else "short_max_q"
        yield _case(rule, f"{rule}/{change}", build, look=look_masks, basis="deduced")
