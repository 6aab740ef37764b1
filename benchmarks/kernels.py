"""Time of each kernel model beside the plain torch operations of the same arithmetic.

Run with ``python benchmarks/kernels.py [--threads N] [--quick] [--only TEXT]``. Both columns come
from the same process, so the ratio is what counts.
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


def indexer_backward_case(rows: int, keys: int, slots: int) -> tuple[str, float, float]:
    """Model against gather, two-way products and scatter in fp32, unchunked rows of 16."""
    torch.manual_seed(0)
    q, k, w = indexer_inputs(rows, keys, 64)
    k, ids = k[:, :, 0], torch.randint(0, keys, (1, rows, slots), dtype=torch.int32)
    target = torch.rand(1, rows, slots).softmax(-1)
    predict = torch.rand(1, rows, slots).softmax(-1)
    namespace = modelled_namespace("1.32.0")

    def model() -> object:
        return namespace.indexer_backward_wrapper(
            q, w, k, target.clone(), predict, ids, torch.ones(())
        )

    def plain() -> object:
        signal, d_k, parts = (predict - target)[0], torch.zeros(keys, 128), []
        for top in range(0, rows, 16):
            part = slice(top, top + 16)
            places = ids[0, part].long()
            gathered, heads = k[0][places].float(), q[0, part].float()
            scores = torch.bmm(heads, gathered.transpose(1, 2))
            slope = (scores > 0) * w[0, part].float().unsqueeze(2) * signal[part].unsqueeze(1)
            parts.append((torch.bmm(slope, gathered), (scores.relu() * slope).sum(2)))
            d_k.index_add_(0, places.flatten(), torch.bmm(slope.mT, heads).flatten(0, 1))
        return parts, d_k

    return f"indexer backward {rows} x {slots} of {keys}", seconds(model), seconds(plain)


def attention_inputs(rows: int, keys: int, heads: int, slots: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {
        "q": torch.randn(rows, heads, 576).bfloat16(),
        "kv": torch.randn(keys, 576).bfloat16(),
        "out": torch.randn(rows, heads, 512).bfloat16(),
        "dout": torch.randn(rows, heads, 512).bfloat16(),
        "lse": torch.full((rows, heads), 8.0),
        "attn_sink": torch.zeros(heads),
        "topk_idxs": torch.randint(0, keys, (rows, slots), dtype=torch.int32),
    }


def attention_backward_case(rows: int, keys: int, slots: int) -> tuple[str, float, float]:
    """Model against the five products, gather and scatter in fp32, unchunked rows of 8."""
    inputs = attention_inputs(rows, keys, 64, slots)
    namespace = modelled_namespace("1.32.0")

    def model() -> object:
        return namespace.sparse_attention_backward_wrapper(**inputs, softmax_scale=0.04)

    def plain() -> object:
        d_kv, parts = torch.zeros(keys, 576), []
        for top in range(0, rows, 8):
            part = slice(top, top + 8)
            places = inputs["topk_idxs"][part].long()
            gathered = inputs["kv"][places].float()
            q, dout = inputs["q"][part].float(), inputs["dout"][part].float()
            p = (torch.bmm(q, gathered.mT) * 0.04 - 8.0).exp()
            slope = p * torch.bmm(dout, gathered[..., :512].mT) * 0.04
            parts.append(torch.bmm(slope, gathered))
            by_key = torch.bmm(slope.mT, q)
            by_key[..., :512] += torch.bmm(p.mT, dout)
            d_kv.index_add_(0, places.flatten(), by_key.flatten(0, 1))
        return parts, d_kv

    return f"attention backward {rows} x {slots} of {keys}", seconds(model), seconds(plain)


def sparse_recompute_case(rows: int, keys: int, slots: int) -> tuple[str, float, float]:
    inputs = attention_inputs(rows, keys, 64, slots)
    q, k, lse = inputs["q"][None], inputs["kv"][None], inputs["lse"][None]
    ids = inputs["topk_idxs"][None]
    namespace = modelled_namespace("1.32.0")

    def model() -> object:
        return namespace.sparse_attn_score_recompute_wrapper(q, k, lse, ids, 0.04)

    def plain() -> object:
        parts = []
        for top in range(0, rows, 8):
            part = slice(top, top + 8)
            gathered = k[0][ids[0, part].long()].float()
            p = (torch.bmm(q[0, part].float(), gathered.mT) * 0.04 - 8.0).exp().sum(1)
            parts.append(p / p.sum(1, keepdim=True))
        return parts

    return f"sparse recompute {rows} x {slots} of {keys}", seconds(model), seconds(plain)


def dense_recompute_case(rows: int, keys: int) -> tuple[str, float, float]:
    inputs = attention_inputs(rows, keys, 64, 1)
    q, k, lse = inputs["q"][None], inputs["kv"][None, :, None], inputs["lse"][None]
    offsets = torch.full((1,), keys - rows, dtype=torch.int32)
    namespace = modelled_namespace("1.32.0")

    def model() -> object:
        return namespace.dense_attn_score_recompute_wrapper(
            q, k, lse, 0.04, q_causal_offsets=offsets
        )

    def plain() -> object:
        parts, flat = [], k[0, :, 0].float()
        for top in range(0, rows, 16):
            products = q[0, top : top + 16].reshape(-1, 576).float() @ flat.t()
            parts.append((products * 0.04 - 8.0).exp().view(16, 64, -1).sum(1))
        return parts

    return f"dense recompute {rows} x {keys}", seconds(model), seconds(plain)


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
    parser.add_argument("--only", default="", help="run the cases whose function name has this")
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
        lambda: indexer_backward_case(8, 256, 128),
        lambda: indexer_backward_case(256, 8192, 2048),
        lambda: attention_backward_case(8, 256, 128),
        lambda: attention_backward_case(64, 8192, 2048),
        lambda: sparse_recompute_case(64, 8192, 2048),
        lambda: dense_recompute_case(64, 8192),
    ]
    if not options.quick:
        cases += [
            lambda: forward_case(256, 131072, 32),
            lambda: top_k_case(256, 131072, 2048, False, "1.32.0"),
        ]
    print(f"{'case':44} {'model ms':>10} {'plain ms':>10} {'ratio':>7}")
    for case in cases:
        if options.only not in case.__code__.co_names[0]:
            continue
        name, model, plain = case()
        print(f"{name:44} {model * 1e3:10.2f} {plain * 1e3:10.2f} {model / plain:7.2f}")
    print(f"peak resident {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
