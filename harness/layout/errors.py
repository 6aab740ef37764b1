"""The closed set of things that can be wrong with a layout, as one exception class.

A caller that knows where the numbers came from (a scenario file, a captured microbatch) maps
``LayoutError.rule`` and ``LayoutError.sequence`` back to the place; the message alone serves
everybody else. The rules:

=========================  ======================================================================
rule                       broken when
=========================  ======================================================================
``no_sequences``           a pack has no entry at all (an empty sequence is an entry of length 0)
``cp_size_too_small``      ``cp_size`` is below 1
``cp_rank_out_of_range``   ``cp_rank`` is not in ``[0, cp_size)``
``cp_size_mismatch``       ``cp_size`` handed in differs from the pack's
``pack_missing``           a ``thd`` question is asked without a pack
``negative_length``        a real or padded length, or ``tail_padding``, is below 0
``lists_differ``           real and padded lengths of one stream do not have the same entries
``kv_unmatched``           key lengths do not have one entry for each query entry
``padded_too_short``       a padded length is below its real length
``padded_not_divisible``   ``cp_size > 1`` and a padded length is no multiple of ``2 * cp_size``
``tail_not_divisible``     ``tail_padding`` is no multiple of ``cp_size``
=========================  ======================================================================
"""

from __future__ import annotations

import enum


class LayoutRule(enum.StrEnum):
    """Which rule a layout breaks; the module docstring says when."""

    NO_SEQUENCES = "no_sequences"
    CP_SIZE_TOO_SMALL = "cp_size_too_small"
    CP_RANK_OUT_OF_RANGE = "cp_rank_out_of_range"
    CP_SIZE_MISMATCH = "cp_size_mismatch"
    PACK_MISSING = "pack_missing"
    NEGATIVE_LENGTH = "negative_length"
    LISTS_DIFFER = "lists_differ"
    KV_UNMATCHED = "kv_unmatched"
    PADDED_TOO_SHORT = "padded_too_short"
    PADDED_NOT_DIVISIBLE = "padded_not_divisible"
    TAIL_NOT_DIVISIBLE = "tail_not_divisible"


class LayoutError(ValueError):
    """Lengths, padding, CP size and CP rank do not describe a layout; the text says what to change.

    Attributes:
        rule: The broken rule.
        sequence: Index of the offending entry of the pack, None where no single entry is to blame.
    """

    # Keyword arguments have defaults so that the exception survives pickling between processes.
    def __init__(
        self, message: str, *, rule: LayoutRule | None = None, sequence: int | None = None
    ) -> None:
        super().__init__(message)
        self.rule = rule
        self.sequence = sequence


def check_cp_size(cp_size: int) -> None:
    """Raise LayoutError unless ``cp_size`` is at least 1."""
    if cp_size < 1:
        raise LayoutError(
            f"cp_size {cp_size} is below 1; use 1 for no context parallelism",
            rule=LayoutRule.CP_SIZE_TOO_SMALL,
        )


def check_cp_rank(cp_rank: int, cp_size: int) -> None:
    """Raise LayoutError unless ``0 <= cp_rank < cp_size``."""
    check_cp_size(cp_size)
    if not 0 <= cp_rank < cp_size:
        raise LayoutError(
            f"cp_rank {cp_rank} is not in [0, {cp_size}); "
            f"use 0 to {cp_size - 1}, or a cp_size above {max(cp_rank, cp_size)}",
            rule=LayoutRule.CP_RANK_OUT_OF_RANGE,
        )
