"""Cases of top-k and of the fused top-k: lengths, ranking, ties, alignment and known defects."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from harness.kernels.certify.case import KernelCase
from harness.kernels.certify.cells import (
    Look,
    look_fused,
    look_ordered_picks,
    look_pick_classes,
    look_picks,
)
from harness.kernels.certify.inputs import batched, generator, int32, packed, with_room
from harness.kernels.releases import Arch, Release

WRAPPER = "indexer_top_k_wrapper"
FUSED = "indexer_forward_top_k_wrapper"
INF = float("inf")


def top_k_cases(release: Release, arch: Arch) -> Iterator[KernelCase]:
    """Yield the cases of one release on one architecture."""
    yield from _lengths()
    yield from _ranking()
    yield from _arguments()
    yield from _defects()
    parameters = release.signatures[WRAPPER].parameters
    if "tie_break" in parameters:
        yield from _ties("deterministic" in parameters)
    if FUSED in release.signatures:
        yield from _fused(release.fused.get(arch) or (64,))


def _case(rule: str, name: str, build: Any, *, look: Look = look_picks, **more: Any) -> Any:
    return KernelCase(
        name=f"indexer_top_k/{name}",
        wrapper=WRAPPER,
        basis=more.pop("basis", "contract"),
        rule=rule,
        build=build,
        look=look,
    )


def _drawn(rows: int, columns: int, top_k: int, lengths: tuple[int, ...] = ()) -> dict[str, Any]:
    """Distinct positive scores; lengths are all columns but for the first rows."""
    scores = torch.rand(rows, columns, generator=generator(rows + columns)) + 1
    seq_lens = torch.full((rows,), columns, dtype=torch.int32)
    seq_lens[: len(lengths)] = int32(*lengths)
    return {"input_values": with_room(scores, 4096), "seq_lens": seq_lens, "top_k": top_k}


def _lengths() -> Iterator[KernelCase]:
    for rows in (148, 149):
        for top_k in (64, 100, 128, 384, 768, 2048):
            columns = max(1000, 2 * top_k)
            lengths = (-1, 0, 1, top_k - 1, top_k, top_k + 1)
            build = partial(_drawn, rows, columns, top_k, lengths)
            yield _case("row length", f"lengths/{rows}rows/top{top_k}", build)
    for columns in (8192, 16384, 65536, 131072):
        yield _case(
            "launch plan by columns", f"columns/{columns}", partial(_drawn, 4, columns, 2048)
        )


def _special() -> dict[str, Any]:
    scores = torch.full((2, 40), -INF)
    scores[:, 30:35] = torch.tensor([float("nan"), 0.0, -0.0, -65519.0, -65520.0])
    return {"input_values": scores, "seq_lens": int32(40, 40)}


def _halves() -> dict[str, Any]:
    arguments = _drawn(150, 1000, 64)
    return {**arguments, "input_values": arguments["input_values"].half()}


def _ranking() -> Iterator[KernelCase]:
    for top_k in (1, 2, 3, 4, 5):
        build = partial(_more, _special, top_k=top_k)
        yield _case("order of special values", f"special/top{top_k}", build)
    yield _case("equal scores", "ties/all_equal", _all_equal)
    yield _case("fp16 scores", "dtype/fp16", _halves)
    yield _case("next_n", "next_n/2", _next_n)


def _more(base: Any, **more: Any) -> dict[str, Any]:
    return {**base(), **more}


def _all_equal() -> dict[str, Any]:
    return {"input_values": torch.ones(150, 500), "seq_lens": torch.full((150,), 500).int()} | {
        "top_k": 128
    }


def _next_n() -> dict[str, Any]:
    arguments = _drawn(150, 600, 64)
    return {**arguments, "seq_lens": torch.full((75,), 500).int(), "next_n": 2}


def _arguments() -> Iterator[KernelCase]:
    base = partial(_drawn, 8, 300, 32)
    scores = base()["input_values"]
    changes: dict[str, dict[str, Any]] = {
        "top_k_0": {"top_k": 0},
        "top_k_2049": {"top_k": 2049},
        "int64_lengths": {"seq_lens": torch.full((8,), 300)},
        "too_few_lengths": {"seq_lens": torch.full((7,), 300).int()},
        "fp64_scores": {"input_values": scores.double()},
    }
    for name, change in changes.items():
        yield _case("arguments", f"arguments/{name}", partial(_more, base, **change))
    columns = torch.rand(8, 304, generator=generator(5))[:, :300]
    yield _case(
        "padded view",
        "arguments/padded_view",
        partial(_more, base, input_values=columns),
        basis="deduced",
    )
    storage = torch.rand(8 * 304 + 1, generator=generator(6))
    yield _case(
        "32-byte alignment",
        "arguments/misaligned_base",
        partial(_more, base, input_values=storage[1:].view(8, 304)),
        basis="deduced",
    )


def _underflow(rows: int, columns: int, length: int, finite: int, top_k: int) -> dict[str, Any]:
    scores = torch.full((rows, columns), -INF)
    scores[:, :finite] = torch.arange(float(finite))
    lengths = torch.full((rows,), length, dtype=torch.int32)
    return {"input_values": with_room(scores, 65536), "seq_lens": lengths, "top_k": top_k}


def _defects() -> Iterator[KernelCase]:
    for rows, columns, length, finite, top_k in (
        (8, 300, 200, 10, 32),
        (8, 300, 200, 40, 32),
        (150, 4200, 4200, 16, 2048),
    ):
        build = partial(_underflow, rows, columns, length, finite, top_k)
        name = f"d446/{rows}x{columns}_{finite}_finite_top{top_k}"
        yield _case("d446", name, build, look=look_pick_classes, basis="reported")
    for top_k in (255, 256, 257, 511, 513):
        build = partial(_drawn, 150, 1200, top_k)
        yield _case("d406", f"d406/top{top_k}", build, basis="reported")
    yield _case("short_rows", "short_rows/7_of_9", _short_rows, basis="read")
    yield _case(
        "long_lengths",
        "long_lengths/past_the_columns",
        partial(_more, partial(_drawn, 8, 300, 32), seq_lens=torch.full((8,), 320).int()),
        look=look_pick_classes,
        basis="read",
    )


def _short_rows() -> dict[str, Any]:
    scores = torch.rand(8, 9, generator=generator(7)) + 1
    return {"input_values": with_room(scores, 256), "seq_lens": torch.full((8,), 3).int()} | {
        "top_k": 2
    }


def _ties(deterministic: bool) -> Iterator[KernelCase]:
    few = torch.randint(0, 4, (150, 500), generator=generator(8)).float()
    base = {"input_values": few, "seq_lens": torch.full((150,), 500).int(), "top_k": 128}
    for tie_break in (0, 1, 2):
        build = partial(_more, lambda: base, tie_break=tie_break)
        yield _case("tie_break", f"tie_break/{tie_break}", build)
    yield _case("tie_break", "tie_break/refused_3", partial(_more, lambda: base, tie_break=3))
    if deterministic:
        build = partial(_more, lambda: base, deterministic=True)
        yield _case("deterministic", "deterministic/few_values", build, look=look_ordered_picks)


def _fused(heads: tuple[int, ...]) -> Iterator[KernelCase]:
    most = max(heads)
    calls: dict[str, Any] = {
        "top16": partial(_more, partial(batched, 30, 60, most), top_k=16, ratio=1),
        "top64": partial(_more, partial(batched, 30, 60, most), top_k=64, ratio=1),
        "offset": partial(
            _more,
            partial(batched, 30, 60, most),
            top_k=16,
            ratio=1,
            q_causal_offsets=int32(20),
        ),
        "local_ids": partial(
            _more,
            partial(batched, 8, 8, most, batch=3),
            top_k=4,
            ratio=1,
            topk_indices_global=False,
        ),
        "global_ids": partial(_more, partial(batched, 8, 8, most, batch=3), top_k=4, ratio=1),
        "thd": partial(_more, partial(packed, (4, 0, 5), (6, 0, 8), most), top_k=4, ratio=1),
        "top_k_0": partial(_more, partial(batched, 8, 8, most), top_k=0, ratio=1),
        "top_k_2049": partial(_more, partial(batched, 8, 8, most), top_k=2049, ratio=1),
        "more_rows_than_keys": partial(_more, partial(batched, 41, 40, most), top_k=8, ratio=1),
    }
    for name, build in calls.items():
        yield KernelCase(
            name=f"indexer_forward_top_k/{name}",
            wrapper=FUSED,
            basis="contract",
            rule="fused top-k",
            build=build,
            look=look_fused,
        )
