"""Integer layout of packed sequences under zigzag context parallelism; standard library only.

Everything is defined by segments, so that a pack of 131,072 tokens costs as little as its handful
of sequences. Only ``inverse_permutation`` and the functions of ``harness.layout.expand`` work per
token.

Words: *packed order* is padded order over all sequences, then the tail; *gathered order* is what an
all-gather over the CP group yields; the *tail* are rows behind the last sequence that no sequence
owns; a row's *limit* is the number of keys it may see.
"""

from harness.layout.errors import LayoutError, LayoutRule
from harness.layout.expand import (
    expand_key_starts,
    expand_limits,
    expand_runs,
    expand_sequences,
    expand_valid,
    iter_row_limits,
)
from harness.layout.limits import LimitRun, row_limits
from harness.layout.pack import Pack, Stream, pack_sequences, sbhd_pack
from harness.layout.plan import KeyPositions, LossMode, Plan, PlanDecision, QkvFormat, expected_plan
from harness.layout.released import released_plan_0192
from harness.layout.runs import (
    Run,
    gather_runs,
    inverse_permutation,
    key_runs,
    local_runs,
    megatron_position_runs,
)
from harness.layout.segments import TAIL, Segment, padding_rows, rank_segments, valid_rows
from harness.layout.zigzag import Half, pad_multiple, padded_length, zigzag_halves, zigzag_runs

__all__ = [
    "Pack",
    "Stream",
    "pack_sequences",
    "sbhd_pack",
    "Half",
    "pad_multiple",
    "padded_length",
    "zigzag_halves",
    "zigzag_runs",
    "Segment",
    "TAIL",
    "rank_segments",
    "valid_rows",
    "padding_rows",
    "Run",
    "local_runs",
    "key_runs",
    "gather_runs",
    "inverse_permutation",
    "megatron_position_runs",
    "LimitRun",
    "row_limits",
    "expand_runs",
    "expand_limits",
    "expand_key_starts",
    "expand_sequences",
    "expand_valid",
    "iter_row_limits",
    "Plan",
    "PlanDecision",
    "QkvFormat",
    "KeyPositions",
    "LossMode",
    "expected_plan",
    "released_plan_0192",
    "LayoutError",
    "LayoutRule",
]
