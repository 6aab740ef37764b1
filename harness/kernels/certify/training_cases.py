"""Cases of score recompute and of the backward wrappers: ids, lengths, heads and known defects."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from harness.kernels.certify.case import KernelCase
from harness.kernels.certify.cells import Look, look_finiteness, look_values
from harness.kernels.certify.inputs import (
    DEPTH,
    HEAD_DIM,
    LATENT,
    SCALE,
    bf16,
    distinct_ids,
    edited,
    generator,
    int32,
    probabilities,
    slots_of,
)
from harness.kernels.flash_mla import NAME as FLASH_MLA
from harness.kernels.releases import Arch, Release

RECOMPUTE = "sparse_attn_score_recompute_wrapper"
INDEXER_BACKWARD = "indexer_backward_wrapper"
ATTENTION_BACKWARD = "sparse_attention_backward_wrapper"
_KEYS = 80

# Rounding of P and dS to bf16 before their products, and of the result: 2^-7 each.
_GRADIENTS = look_values("dq", "dkv", rtol=2**-6, of_max=2**-6)
_INDEXER = look_values("d_index_q", "d_weights", "d_index_k", rtol=2**-6, of_max=2**-6)
# Head sums of probabilities in fp32 behind a fast exponential.
_TARGET = look_values("target", rtol=2**-9, of_max=2**-18)
_FORWARD = look_values("out", "lse", rtol=2**-7, of_max=2**-7)


def training_cases(release: Release, arch: Arch) -> Iterator[KernelCase]:
    """Yield the cases of one release on one architecture."""
    yield from _recompute()
    yield from _indexer_backward(release)
    yield from _attention_backward()


def flash_mla_cases() -> Iterator[KernelCase]:
    """Yield the cases of FlashMLA's sparse forward."""
    for heads in (16, 32, 48, 64, 96, 128):
        build = partial(_attended, heads=heads)
        yield _case(FLASH_MLA, "head counts", f"flash_mla/heads/{heads}", build, _FORWARD)
    for name, value in {"minus_one": -1, "smallest": -(2**31), "past_the_keys": _KEYS}.items():
        build = partial(_attended, value=value)
        yield _case(FLASH_MLA, "ids that are no key", f"flash_mla/ids/{name}", build, _FORWARD)
    for length in (0, 1, 64, 128):
        build = partial(_attended, length=length)
        yield _case(FLASH_MLA, "topk_length", f"flash_mla/length/{length}", build, _FORWARD)


def _case(
    wrapper: str, rule: str, name: str, build: Any, look: Look, basis: str = "contract", **more: Any
) -> KernelCase:
    return KernelCase(
        name=name, wrapper=wrapper, basis=basis, rule=rule, build=build, look=look, **more
    )


def _attended(*, heads: int = 64, value: int | None = None, length: int | None = None) -> Any:
    ids = slots_of(distinct_ids(4, _KEYS, 40), 128)
    if value is not None:
        ids = edited(ids, ((1, 3), value))
    arguments = {
        "q": bf16(1, 4, heads, DEPTH),
        "kv": bf16(2, _KEYS, 1, DEPTH),
        "indices": ids.unsqueeze(1),
        "sm_scale": SCALE,
    }
    if length is not None:
        arguments["topk_length"] = torch.full((4,), length, dtype=torch.int32)
    return arguments


def _recomputed(
    *,
    rows: int = 6,
    slots: int = 128,
    heads: int = 64,
    depth: int = DEPTH,
    used: int = 30,
    value: int | None = None,
    length: int | None = None,
    filled: int = -1,
) -> dict[str, Any]:
    """Arguments of sparse attention recompute: one entry, ``used`` keys a row."""
    ids = slots_of(distinct_ids(rows, _KEYS, used), slots, value=filled).unsqueeze(0)
    if value is not None:
        ids = edited(ids, ((0, 1, 3), value))
    arguments = {
        "q_attn": bf16(1, 1, rows, heads, depth),
        "k_attn": bf16(2, 1, _KEYS, depth),
        "lse": torch.randn(1, rows, heads, generator=generator(3)),
        "topk_indices": ids,
        "softmax_scale": SCALE,
        "qhead_per_kv_head": heads,
    }
    if length is not None:
        arguments["topk_length"] = torch.full((1, rows), length, dtype=torch.int32)
    return arguments


def _recompute() -> Iterator[KernelCase]:
    def case(
        rule: str, name: str, look: Look = _TARGET, basis: str = "contract", **how: Any
    ) -> Any:
        repeats = how.pop("repeats", 1)
        build = partial(_recomputed, **how)
        name = f"sparse_attn_score_recompute/{name}"
        return _case(RECOMPUTE, rule, name, build, look, basis, repeats=repeats)

    for slots in (100, 128, 256, 512, 768):
        yield case("slots and tiles", f"slots/{slots}", slots=slots)
    for heads in (16, 32, 48, 64, 96, 128):
        yield case("head counts", f"heads/{heads}", heads=heads)
    for length in (-1, 0, 1, 30, 128):
        yield case("topk_length", f"length/{length}", length=length)
    yield case("single_row", "single_row", rows=1, basis="read")
    yield case("d317", "d317/with_length", length=30, basis="reported")
    # Width and heads for which the compact and the plain tile coincide.
    tile = partial(case, depth=LATENT, heads=128, slots=512)
    yield tile("d1549", "d1549/behind_the_length", basis="reported", length=20)
    # Ids that are no key count with whatever the kernel holds: only whether the row is finite.
    finite = look_finiteness("target")
    for value in (_KEYS, -1):
        yield case("invalid_slots", f"ids/{value}", finite, "read", value=value, length=30)
    for blocks in (1, 2, 3, 4, 5, 6, 8, 12):
        name = f"slot_arithmetic/{blocks}_blocks"
        yield case("slot_arithmetic", name, basis="deduced", slots=64 * blocks, length=30)
    yield case("scratch race", "scratch_race/rows64", basis="deduced", rows=64, repeats=50)


def _trained(
    *,
    batch: int = 1,
    heads: int = 64,
    slots: int = 128,
    value: int | None = None,
    rows: int = 3,
    filled_dk: float | None = None,
) -> dict[str, Any]:
    """Arguments of indexer backward; ids are local, and the release's default decides."""
    used = 20
    ids = slots_of(distinct_ids(batch * rows, 40, used), slots).view(batch, rows, slots)
    if value is not None:
        ids = edited(ids, ((0, 1, 3), value))
    arguments = {
        "index_q": bf16(1, batch, rows, heads, HEAD_DIM),
        "weights": bf16(2, batch, rows, heads),
        "index_k": bf16(3, batch, 40, HEAD_DIM),
        "attn_score": probabilities(4, batch, rows, slots, used=used),
        "index_score": probabilities(5, batch, rows, slots, used=used),
        "topk_indices": ids,
        "sm_scale": 0.09,
        "grad_loss": torch.ones(1),
    }
    if filled_dk is not None:
        arguments["d_index_k"] = torch.full((batch, 40, HEAD_DIM), filled_dk)
    return arguments


def _indexer_backward(release: Release) -> Iterator[KernelCase]:
    takes_mode = "topk_indices_global" in release.signatures[INDEXER_BACKWARD].parameters

    def case(
        rule: str, name: str, look: Look = _INDEXER, basis: str = "contract", **how: Any
    ) -> Any:
        build = partial(_trained, **how)
        return _case(INDEXER_BACKWARD, rule, f"indexer_backward/{name}", build, look, basis)

    for batch in (1, 2, 4):
        yield case("meaning of ids", f"batch/{batch}", batch=batch)
    for heads in (16, 32, 64, 128):
        yield case("head counts", f"heads/{heads}", heads=heads)
    for slots in (64, 100, 128, 256):
        yield case("slots and tiles", f"slots/{slots}", slots=slots)
    for value in (-1, -(2**31), 40):
        yield case("ids that are no key", f"ids/{value}", value=value)
    if takes_mode:
        for value in (40, 79):
            yield case("d550", f"d550/{value}", batch=2, value=value, basis="reported")
    yield case("unzeroed_dk", "filled_dk", filled_dk=3.0, basis="read")


def _differentiated(
    *,
    heads: int = 64,
    slots: int = 64,
    keys: int = _KEYS,
    first: int = 0,
    value: int | None = None,
    lengths: tuple[int, ...] | None = (64, 1, 32, 21),
    lse: float | None = None,
) -> dict[str, Any]:
    """Arguments of sparse attention backward: four tokens, ids from slot ``first`` on."""
    tokens = 4
    ids = slots_of(distinct_ids(tokens, keys, min(keys, slots)), slots).roll(first, 1)
    if value is not None:
        ids = edited(ids, ((1, 3), value))
    statistics = torch.randn(tokens, heads, generator=generator(4)) + 4.0
    if lse is not None:
        statistics[2] = lse
    return {
        "q": bf16(1, tokens, heads, DEPTH),
        "kv": bf16(2, keys, DEPTH),
        "out": bf16(3, tokens, heads, LATENT),
        "dout": bf16(5, tokens, heads, LATENT),
        "lse": statistics,
        "attn_sink": torch.randn(heads, generator=generator(6)),
        "topk_idxs": ids,
        "softmax_scale": SCALE,
        "topk_length": None if lengths is None else int32(*lengths),
    }


def _attention_backward() -> Iterator[KernelCase]:
    def case(
        rule: str, name: str, look: Look = _GRADIENTS, basis: str = "contract", **how: Any
    ) -> Any:
        build = partial(_differentiated, **how)
        name = f"sparse_attention_backward/{name}"
        return _case(ATTENTION_BACKWARD, rule, name, build, look, basis)

    for heads in (16, 32, 48, 64, 96, 128):
        basis = "contract" if heads % 64 == 0 else "reported"
        yield case("d384", f"heads/{heads}", basis=basis, heads=heads, lengths=None)
    for value in (-1, _KEYS, -(2**31)):
        for lengths in (None, (64, 64, 64, 64)):
            name = f"ids/{value}{'' if lengths is None else '/with_length'}"
            yield case("d785 or d877", name, basis="reported", value=value, lengths=lengths)
    for length in (0, -1):
        name = f"length/{length}"
        yield case("d433", name, basis="reported", lengths=(64, length, 32, 21))
    yield case("long_topk_lengths", "length/65_of_64", basis="read", lengths=(64, 65, 32, 21))
    name = "ids_behind_the_keys"
    yield case("d298", name, basis="read", keys=40, first=24, lengths=None)
    for name, lse in {"infinite": float("inf"), "minus_infinite": -float("inf")}.items():
        finite = look_finiteness("dq", "dkv")
        yield case("infinite statistics", f"lse/{name}", finite, lse=lse)
