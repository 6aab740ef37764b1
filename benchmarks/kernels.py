"""Time of each kernel model beside the plain torch operations of the same arithmetic.

Run with ``python benchmarks/kernels.py [--threads N] [--quick]``. Both columns come from the same
process, so the ratio is what counts.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from pathlib import Path
from sys import path

import torch

path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness.kernels import modelled_flash_mla, modelled_namespace
from harness.kernels.ranking import top_k_order
from harness.kernels.selection import TieRule, select_columns, shuffle_slots

REPEATS = 3


def seconds(action: Callable[[], object]) -> float:
    """Best of a few runs after one that warms up."""
    action()
    best = float("inf")
    for _ in range(REPEATS):
        started = time.perf_counter()
        action()
        best = min(best, time.perf_counter() - started)
    return best


def indexer_inputs(rows: int, keys: int, heads: int) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    q = torch.randn(1, rows, heads, 128).bfloat16()
    k = torch.randn(1, keys, 1, 128).bfloat16()
    return q, k, torch.randn(1, rows, heads).bfloat16()


def plain_scores(q: torch.Tensor, k: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Chunked fp32 matmul, relu and weighted sum: the arithmetic without any model."""
    rows, heads, depth = q[0].shape
    keys = k[0, :, 0].float()
    out = torch.empty(rows, keys.shape[0])
    step = max(1, 1024 // heads)
    for top in range(0, rows, step):
        products = q[0, top : top + step].reshape(-1, depth).float()
        weights = w[0, top : top + step].float().unsqueeze(1)
        for left in range(0, keys.shape[0], 1024):
            dots = (products @ keys[left : left + 1024].t()).relu_()
            block = torch.bmm(weights, dots.view(weights.shape[0], heads, -1))
            out[top : top + step, left : left + 1024] = block.squeeze(1)
    return out


def forward_case(rows: int, keys: int, heads: int) -> tuple[str, float, float]:
    q, k, w = indexer_inputs(rows, keys, heads)
    namespace = modelled_namespace("1.32.0")
    offsets = torch.full((1,), keys - rows, dtype=torch.int32)

    def model() -> object:
        return namespace.indexer_forward_wrapper(q, k, w, ratio=1, q_causal_offsets=offsets)

    name = f"forward {rows} x {keys} x {heads}"
    return name, seconds(model), seconds(lambda: plain_scores(q, k, w))


def top_k_case(
    rows: int, keys: int, top_k: int, ties: bool, version: str
) -> tuple[str, float, float]:
    torch.manual_seed(0)
    scores = torch.randn(rows, keys)
    if ties:
        scores = (scores * 8).round()
    lengths = torch.arange(keys - rows + 1, keys + 1, dtype=torch.int32)
    namespace = modelled_namespace(version)

    def model() -> object:
        return namespace.indexer_top_k_wrapper(scores, lengths, top_k)

    def plain() -> object:
        hidden = torch.arange(keys) >= lengths.unsqueeze(1)
        return scores.masked_fill(hidden, float("-inf")).topk(top_k, dim=1)

    kind = "ties" if ties else "normal"
    return f"top_k {version} {rows} x {keys} k {top_k} {kind}", seconds(model), seconds(plain)


def fused_case(rows: int, keys: int, heads: int, top_k: int) -> tuple[str, float, float]:
    q, k, w = indexer_inputs(rows, keys, heads)
    namespace = modelled_namespace("1.32.0")
    offsets = torch.full((1,), keys - rows, dtype=torch.int32)

    def model() -> object:
        return namespace.indexer_forward_top_k_wrapper(
            q, k, w, top_k, ratio=1, q_causal_offsets=offsets
        )

    def plain() -> object:
        return plain_scores(q, k, w).topk(top_k, dim=1).values.softmax(dim=1)

    return f"fused top_k {rows} x {keys} k {top_k}", seconds(model), seconds(plain)


def flash_case(rows: int, keys: int, heads: int, slots: int) -> tuple[str, float, float]:
    torch.manual_seed(0)
    q = torch.randn(rows, heads, 576).bfloat16()
    kv = torch.randn(keys, 1, 576).bfloat16()
    ids = torch.randint(0, keys, (rows, 1, slots), dtype=torch.int32)
    forward = modelled_flash_mla("sm100")

    def plain() -> object:
        out = []
        for top in range(0, rows, 32):
            part = slice(top, top + 32)
            gathered = kv[ids[part, 0].long(), 0].float()
            logits = torch.bmm(q[part].float(), gathered.transpose(1, 2)) * 0.04
            out.append(torch.bmm(logits.softmax(dim=2), gathered[..., :512]).bfloat16())
        return torch.cat(out)

    name = f"flash_mla {rows} x {slots} of {keys} x {heads}"
    return name, seconds(lambda: forward(q, kv, ids, 0.04)), seconds(plain)


def checking_case(rows: int, keys: int, top_k: int, version: str) -> tuple[str, float, float]:
    """Model against its own selection without address, length or defect checks."""
    torch.manual_seed(0)
    scores = torch.randn(rows, keys)
    lengths = torch.full((rows,), keys, dtype=torch.int32)
    namespace = modelled_namespace(version)
    generator = torch.Generator().manual_seed(0)

    def bare() -> object:
        columns = select_columns(top_k_order(scores), top_k, TieRule.ANY, generator)
        columns = shuffle_slots(columns, generator)
        return columns.to(torch.int32), scores.gather(1, columns)

    return (
        f"top_k {version} against no checks",
        seconds(lambda: namespace.indexer_top_k_wrapper(scores, lengths, top_k)),
        seconds(bare),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="leave out the long cases")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    cases: list[Callable[[], tuple[str, float, float]]] = [
        lambda: forward_case(16, 64, 32),
        lambda: forward_case(512, 8192, 32),
        lambda: top_k_case(16, 64, 16, False, "1.32.0"),
        lambda: top_k_case(512, 8192, 2048, False, "1.32.0"),
        lambda: top_k_case(512, 8192, 2048, True, "1.32.0"),
        lambda: checking_case(512, 8192, 2048, "1.32.0"),
        lambda: checking_case(512, 8192, 2048, "1.26.0"),
        lambda: fused_case(512, 8192, 32, 2048),
        lambda: flash_case(64, 512, 64, 512),
        lambda: flash_case(256, 8192, 64, 2048),
    ]
    if not options.quick:
        cases += [
            lambda: forward_case(256, 131072, 32),
            lambda: top_k_case(256, 131072, 2048, False, "1.32.0"),
        ]
    print(f"{'case':44} {'model ms':>10} {'plain ms':>10} {'ratio':>7}")
    for case in cases:
        name, model, plain = case()
        print(f"{name:44} {model * 1e3:10.2f} {plain * 1e3:10.2f} {model / plain:7.2f}")
    print(f"peak resident {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
