"""Time of layout functions for packs of 131,072 tokens to that for packs of 4,096, in one process.

Run with ``python benchmarks/layout.py``. Segments, limits and plans follow the number of sequences
and not of tokens: their ratio is to be about 1. The inverse permutation is written for each token,
by runs: its ratio is to be below 32.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from harness.layout import (
    Pack,
    expected_plan,
    inverse_permutation,
    pack_sequences,
    rank_segments,
    row_limits,
    valid_rows,
)

CASES: dict[str, Callable[[Pack], object]] = {
    "rank_segments": lambda pack: rank_segments(pack, 31),
    "row_limits": lambda pack: row_limits(pack, 15),
    "valid_rows": valid_rows,
    "expected_plan": lambda pack: expected_plan(qkv_format="thd", cp_size=32, pack=pack),
    "inverse_permutation": inverse_permutation,
}


def main() -> None:
    for count in (1, 2, 32):
        short, long = (pack_sequences([n // count] * count, cp_size=32) for n in (4096, 131072))
        for name, function in CASES.items():
            few, many = _best_s(function, short), _best_s(function, long)
            print(f"{count:>3} sequences  {name:<20} {1e3 * many:8.3f} ms  ratio {many / few:6.2f}")


def _best_s(function: Callable[[Pack], object], pack: Pack, repeats: int = 20) -> float:
    """Shortest of several runs, so that a busy machine does not decide."""
    times = []
    for _ in range(repeats):
        begin_s = time.perf_counter()
        function(pack)
        times.append(time.perf_counter() - begin_s)
    return min(times)


if __name__ == "__main__":
    main()
