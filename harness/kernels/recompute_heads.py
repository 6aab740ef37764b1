"""Head counts that score recompute serves, and how others are refused."""

from __future__ import annotations

from harness.kernels.problem import require
from harness.kernels.rules import Arch

_SM90_TILE = 64


def check_dense_heads(arch: Arch, heads: int) -> None:
    """Judge the heads of a dense call.

    SM90 cuts them into tiles of min(heads, 64). On SM100 no limit was established.

    Raises:
        AssertionError: SM90 heads that no tile divides.
    """
    if arch == "sm90":
        check_sm90_heads(heads, ())


def check_sm90_heads(heads: int, odd_heads: tuple[int, ...]) -> None:
    """Judge SM90 heads: more than one, and a multiple of min(heads, 64).

    Args:
        heads: Query heads.
        odd_heads: Counts with a tile of their own.

    Raises:
        AssertionError: No tile divides them.
    """
    require(heads > 1, AssertionError, f"{heads} query heads; the kernel asserts more than one")
    tile = min(heads, _SM90_TILE)
    require(
        heads % tile == 0 or heads in odd_heads,
        AssertionError,
        f"{heads} query heads; the kernel asserts a multiple of {tile}",
    )
