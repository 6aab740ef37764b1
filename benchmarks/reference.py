"""Throughput of the exact scorer beside a chunked matmul, and peak memory, in one run.

The matmul has the same shapes (rows * heads by keys, K = head_dim) and is cut into the same blocks,
so the ratio says what relu, weights and head sum cost on top of it. Both are timed in turn, and the
best time of each counts, so that another load on the machine moves both alike.

    python benchmarks/reference.py            # 256 rows, 131,072 keys, 32 heads of 128
    python benchmarks/reference.py --check    # exit 1 below half the matmul or above 1 GiB
"""

from __future__ import annotations

import argparse
import multiprocessing
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness.layout import pack_sequences
from harness.reference.operands import Operands
from harness.reference.rows import rows_of_rank
from harness.reference.scores import ScoreBlocks, exact_scores
from harness.reference.selection import judge_selection

LEAST_RATIO = 0.5
MOST_BYTES = 1 << 30


def make_inputs(rows: int, keys: int, heads: int, dim: int) -> list[torch.Tensor]:
    torch.manual_seed(0)
    shapes = ((rows, heads, dim), (keys, dim), (rows, heads))
    return [torch.randn(shape).bfloat16() for shape in shapes]


def chunked_matmul(q: torch.Tensor, k: torch.Tensor, blocks: ScoreBlocks) -> None:
    """Multiply all rows and heads with all keys, one block at a time into one buffer."""
    rows, heads, dim = q.shape
    flat = q.reshape(rows * heads, dim)
    step = blocks.rows * heads
    out = torch.empty(step * blocks.keys)
    for key in range(0, k.shape[0], blocks.keys):
        keys = k[key : key + blocks.keys].t()
        for row in range(0, flat.shape[0], step):
            part = flat[row : row + step]
            size = part.shape[0] * keys.shape[1]
            torch.mm(part, keys, out=out[:size].view(part.shape[0], keys.shape[1]))


def best_times(functions: list[Callable[[], object]], repeats: int) -> list[float]:
    for function in functions:
        function()
    best = [float("inf")] * len(functions)
    for _ in range(repeats):
        for index, function in enumerate(functions):
            start = time.perf_counter()
            function()
            best[index] = min(best[index], time.perf_counter() - start)
    return best


def report_throughput(shape: tuple[int, int, int, int], repeats: int) -> float:
    rows, keys, heads, dim = shape
    q, k, w = make_inputs(*shape)
    q32, k32 = q.float(), k.float()
    out = torch.empty(rows, keys)
    blocks = ScoreBlocks.fitting(num_heads=heads, device=q.device)
    scorer, matmul = best_times(
        [lambda: exact_scores(q, k, w, out=out), lambda: chunked_matmul(q32, k32, blocks)], repeats
    )
    flops = 2 * rows * keys * heads * dim
    print(f"blocks: {blocks.rows} rows x {heads} heads x {blocks.keys} keys")
    print(f"chunked mm, fp32:    {matmul:7.3f} s  {flops / matmul / 1e9:7.1f} GFLOP/s")
    print(f"exact scorer, fp32:  {scorer:7.3f} s  {flops / scorer / 1e9:7.1f} GFLOP/s of its mm")
    print(f"ratio:               {matmul / scorer:7.2f}     (at least {LEAST_RATIO} wanted)")
    return matmul / scorer


def status_bytes(field: str) -> int:
    text = Path("/proc/self/status").read_text(encoding="ascii")
    match = re.search(rf"^{field}:\s+(\d+) kB$", text, re.MULTILINE)
    assert match, f"/proc/self/status has no {field}; the peak is measured on Linux only"
    return int(match[1]) << 10


def peak_of(what: str, shape: tuple[int, int, int, int], answers: multiprocessing.Queue) -> None:
    """Child: put the bytes that one call peaks at, beyond what is held before it."""
    rows, keys, _, _ = shape
    q, k, w = make_inputs(*shape)
    exact_scores(q[:8], k[:2048], w[:8])  # threads and libraries are no part of the peak
    call: Callable[[], object]
    if what == "scores":
        call = lambda: exact_scores(q, k, w)  # noqa: E731
    else:
        # The last rows of one sequence, which see every key.
        pack = pack_sequences([keys], cp_size=keys // (2 * rows))
        table = rows_of_rank(pack, 0)
        table = table.take(table.half == 1)
        all_q, all_w = q.repeat(2, 1, 1), w.repeat(2, 1)
        operands = Operands(q=all_q, k=k, w=all_w, dtype=what)
        topk = min(2048, keys // 4)
        picks = torch.arange(topk).expand(2 * rows, topk)
        call = lambda: judge_selection(picks, operands, table, topk=topk)  # noqa: E731
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # VmHWM starts again from VmRSS
    before = status_bytes("VmRSS")
    call()
    answers.put(status_bytes("VmHWM") - before)


def report_peak(label: str, what: str, shape: tuple[int, int, int, int]) -> int:
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    child = context.Process(target=peak_of, args=(what, shape, answers))
    child.start()
    child.join()
    if child.exitcode:
        raise SystemExit(f"the child that measures {label} ended with exit code {child.exitcode}")
    peak = answers.get()
    print(f"peak beyond inputs, {label}: {peak / 2**20:6.0f} MiB (result included)")
    return peak


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--keys", type=int, default=131072)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    shape = (args.rows, args.keys, args.heads, args.dim)
    print(
        f"{args.rows} rows x {args.keys} keys x {args.heads} heads x {args.dim}, "
        f"{torch.get_num_threads()} threads, torch {torch.__version__}"
    )
    ratio = report_throughput(shape, args.repeats)
    peaks = [
        report_peak("scores, fp32", "scores", shape),
        report_peak("judgement, fp32", "fp32", shape),
        report_peak("judgement, fp64", "fp64", shape),
    ]
    failed = ratio < LEAST_RATIO or max(peaks) > MOST_BYTES
    return int(args.check and failed)


if __name__ == "__main__":
    sys.exit(main())
