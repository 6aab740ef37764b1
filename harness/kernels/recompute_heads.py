"""Head counts that score recompute serves, and how others are refused.

The SM100 rules were found by compiling the newest release's kernels without a device; earlier
releases have the same tiles, so the same is assumed of them.
"""

from __future__ import annotations

from harness.kernels.failures import CompileFailure
from harness.kernels.problem import require
from harness.kernels.rules import Arch

_SM90_TILE = 64
_COLUMNS = 8
_LEAST_INDEXER = 16


def check_dense_heads(name: str, arch: Arch, heads: int, *, attention: bool) -> None:
    """Judge the heads of a dense call.

    Raises:
        AssertionError: SM90 heads that no tile divides; SM100 indexer heads below 16.
        ValueError: SM100 attention heads that are no power of two.
        CompileFailure: SM100 indexer heads that are no power of two.
    """
    if arch == "sm90":
        check_sm90_heads(heads, ())
        return
    if attention:
        check_repetition(heads)
        return
    if not _power_of_two(heads):
        raise CompileFailure(name, (heads,), "layouts of the packed rows do not compose")
    require(
        heads >= _LEAST_INDEXER,
        AssertionError,
        f"{heads} query heads; the kernel asserts at most 8 rows in a tile of 128",
    )


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


def check_single_row(rows: int, defects: frozenset[str]) -> None:
    """Judge the rows of one SM90 launch.

    Raises:
        RuntimeError: With ``single_row``, one row.
    """
    require(
        rows != 1 or "single_row" not in defects,
        RuntimeError,
        "a single query row: expected a unit stride of the per-head operand over rows",
    )


def check_repetition(count: int) -> None:
    """Judge how often a load of products repeats.

    Raises:
        ValueError: Not a power of two.
    """
    require(_power_of_two(count), ValueError, f"{count} is not a valid repetition of a load")


def check_sm100_columns(name: str, key: tuple[object, ...], heads: int) -> None:
    """Judge heads as columns of the matrix unit.

    Raises:
        CompileFailure: Not a multiple of 8.
    """
    if heads % _COLUMNS or heads == 0:
        raise CompileFailure(name, key, f"{heads} columns; the matrix unit takes multiples of 8")


def _power_of_two(count: int) -> bool:
    return count > 0 and count & (count - 1) == 0
