"""What the templates of kernel scripts (level ``kernel``) are filled with."""

from __future__ import annotations

from typing import Any

from harness.kernels.defects import resolve_defects
from harness.kernels.recompute_tiles import (
    accumulator_slots,
    attention_tile,
    unfinished_blocks,
)
from harness.kernels.releases import release_table
from harness.kernels.rules import IndexerBackwardRules
from harness.kernels.topk_plan import topk_plan
from harness.repro.refusals import ExportRefusedError
from harness.repro.script_selection import VECTOR as _VECTOR
from harness.repro.script_selection import kernels_line
from harness.scenario.spec import Scenario

_BLOCK = 128
_LENGTHS = {
    "none": "None",
    "selected": "(selection >= 0).sum(2)",
    "slots": "torch.full((BATCH, ROWS), SLOTS)",
}
_GRADIENT_BOUND = "1e-31 + 2.0**-7 * due.abs() + 3 * 2.0**-6 * size"
_VALUE_BOUND = "1e-7 + 2.0**-10 * size"
_Refusal = tuple[str, str] | None
SERVED = (
    *("indexer_backward", "sparse_attn_score_recompute", "sparse_attention_backward"),
    "indexer_top_k",
)
_TABLES = ("normal", "constant", "ascending", "descending", "plateau", "underflow", "few_finite")
_TABLE_ELEMENTS = 1 << 24
"""Larger tables are drawn otherwise, and reach what only arithmetic can judge."""


def kernel_context(scenario: Scenario) -> dict[str, Any]:
    """Return the values of the templates.

    Raises:
        ExportRefusedError: for a wrapper that has no template.
    """
    call, model = scenario.kernel_call, scenario.model
    if call.wrapper not in SERVED:
        raise ExportRefusedError(
            f"{scenario.id}: kernel_call.wrapper: {call.wrapper} has no script yet, expected one "
            f"of {', '.join(SERVED)}; export a bundle, which holds scenario and evidence"
        )
    if len(scenario.microbatches) != 1 or scenario.values.scores != "normal":
        raise ExportRefusedError(
            f"{scenario.id}: a script of level kernel has one microbatch and scores: normal; "
            "write a scenario for each"
        )
    if call.wrapper == "indexer_top_k":
        return _top_k(scenario)
    slots = call.width(model.dsa_indexer_topk)
    if any(edit.length is not None and edit.length > slots for edit in call.edits):
        raise ExportRefusedError(
            f"{scenario.id}: a length above the {slots} slots has no script; export a bundle, "
            "which holds scenario and evidence"
        )
    sequences = scenario.microbatches[0].sequences
    is_target = call.wrapper == "sparse_attn_score_recompute"
    values: dict[str, Any] = {
        "wrapper": call.wrapper,
        "batch": len(sequences),
        "rows": sequences[0],
        "keys": call.keys,
        "slots": slots,
        "selected": call.count(model.dsa_indexer_topk),
        "seeds": list(scenario.values.seeds),
        "heads": model.dsa_indexer_n_heads,
        "dim": model.dsa_indexer_head_dim,
        "attention_heads": model.num_attention_heads,
        "width": model.kv_lora_rank + model.qk_pos_emb_head_dim,
        "scale": f"{model.qk_head_dim + model.qk_pos_emb_head_dim} ** -0.5",
        "scores": "normal",
        "id_edits": [
            (edit.batch, edit.row, edit.slot, edit.id)
            for edit in call.edits
            if edit.slot is not None and edit.id is not None
        ],
        "length_edits": [
            (edit.batch, edit.row, edit.length)
            for edit in call.edits
            if edit.length is not None and call.lengths != "none"
        ],
        "back": call.placement == "back",
        "zero_slots": call.empty_slots == "zero",
        "lengths": _LENGTHS[call.lengths],
        "has_lengths": call.lengths != "none",
        "bound": _VALUE_BOUND if is_target else _GRADIENT_BOUND,
        "kernels_line": kernels_line(scenario),
        "raises": True,
    }
    return values | _RULES[call.wrapper](scenario, values)


def _top_k(scenario: Scenario) -> dict[str, Any]:
    """Values for ``indexer_top_k``, whose table is drawn by row."""
    call, topk = scenario.kernel_call, scenario.model.dsa_indexer_topk
    asked = scenario.kernels.modelled
    sequences = scenario.microbatches[0].sequences
    rows = len(sequences) * sequences[0]
    lengths = [
        (edit.batch * sequences[0] + edit.row, edit.length)
        for edit in call.edits
        if edit.length is not None
    ]
    blocker = ""
    if call.scores not in _TABLES or call.deterministic:
        blocker = f"scores: {call.scores}" if call.scores not in _TABLES else "deterministic"
    elif rows * call.keys > _TABLE_ELEMENTS:
        blocker = f"a table of {rows} x {call.keys}"
    elif topk > call.keys or any(length > call.keys for _, length in lengths):
        blocker = "more picks, or a longer row, than there are keys"
    release = release_table(asked.cudnn_frontend)
    if asked.arch not in release.top_k:
        blocker = f"{release.version} on {asked.arch}, which has no such kernel,"
    if blocker:
        raise ExportRefusedError(
            f"{scenario.id}: {blocker} has no script; export a bundle, which holds scenario and "
            "evidence"
        )
    defects = resolve_defects(asked.defects, release.defects[asked.arch])
    plan = topk_plan(n_rows=rows, num_cols=call.keys, top_k=topk)
    return {
        "wrapper": call.wrapper,
        "rows": rows,
        "keys": call.keys,
        "topk": topk,
        "seeds": list(scenario.values.seeds),
        "visible": call.keys if call.selected is None else call.selected,
        "row_lengths": lengths,
        "scores": call.scores,
        "above": call.above,
        "release": release.version,
        "arch": asked.arch,
        "alone": True,
        "strided": False,
        "scores_underflow": True,
        "d446": "d446" in defects,
        "d406": "d406" in defects and plan.refuses_odd_top_k,
        "short_rows": "short_rows" in defects and topk < _VECTOR,
        "raises": "d446" in defects or "d406" in defects,
        "kernels_line": kernels_line(scenario),
    }


def _indexer_backward(scenario: Scenario, values: dict[str, Any]) -> dict[str, Any]:
    asked, call = scenario.kernels.modelled, scenario.kernel_call
    release = release_table(asked.cudnn_frontend)
    rules = release.indexer_backward[asked.arch]
    defects = resolve_defects(asked.defects, release.defects[asked.arch])
    says_global = not rules.global_only and call.ids == "global"
    rule = "own"
    if rules.global_only or says_global:
        if "foreign_ids" in defects and not rules.checks_owner:
            rule = "any_entry"
    elif "d550" in defects:
        rule = "later_entry"
    said = None
    if says_global or (not rules.global_only and call.ids == "local"):
        said = f'{{"topk_indices_global": {says_global}}}'
    old = {"fresh": "None", "zeroed": "0.0", "filled": "3.0"}[call.d_index_k]
    return {
        "release": release.version,
        "arch": asked.arch,
        "global_ids": rules.global_only or says_global,
        "rule": rule,
        "adds_to_old": "unzeroed_dk" in defects,
        "said_ids": said,
        "old": old if old == "None" else f"torch.full((BATCH, KEYS, DIM), {old})",
        "refused": _backward_refusal(rules, values),
    }


def _backward_refusal(rules: IndexerBackwardRules, values: dict[str, Any]) -> _Refusal:
    heads, slots = values["heads"], values["slots"]
    if heads < 64 and heads not in rules.small_heads:
        return rules.heads_error.__name__, f"{heads} heads, at least 64 are served"
    if slots % _BLOCK or (slots == 0 and rules.positive_width):
        return "AssertionError", f"{slots} slots are no multiple of {_BLOCK}"
    return None


def _score_recompute(scenario: Scenario, values: dict[str, Any]) -> dict[str, Any]:
    asked = scenario.kernels.modelled
    release = release_table(asked.cudnn_frontend)
    rules = release.recompute[asked.arch]
    defects = resolve_defects(asked.defects, release.defects[asked.arch])
    slots, sm90 = values["slots"], asked.arch == "sm90"
    found: dict[str, Any] = {
        "release": release.version,
        "arch": asked.arch,
        "counts_invalid": "invalid_slots" in defects,
        "written": slots // _BLOCK * _BLOCK if "tail_slots" in defects else slots,
        "zero_tail": not rules.unwritten_slots,
        "takes_lengths": values["has_lengths"],
        "positional": values["has_lengths"],
        "unchecked": False,
        "stale": False,
        "unfinished": [],
        "block": 0,
        "refused": None,
    }
    if sm90:
        if values["rows"] == 1 and "single_row" in defects:
            found["refused"] = ("ValueError", '"a single query row has no unit stride"')
        return found
    heads = values["attention_heads"]
    tile = attention_tile(
        rules, depth=values["width"], heads=heads, slots=slots, has_length=values["has_lengths"]
    )
    ignored = "d1549" in defects and not tile.compact
    found |= {
        "takes_lengths": values["has_lengths"] and not ignored,
        "positional": values["has_lengths"] and tile.compact,
        "unchecked": "invalid_slots" in defects and tile.compact,
        "stale": True,
        "block": tile.block,
    }
    if slots % tile.block:
        found["refused"] = ("AssertionError", f'"{slots} slots, the block is {tile.block}"')
    elif tile.compact and "d317" in defects:
        found["refused"] = ("ModelFault", '"compile_failed", "lengths do not compile"')
    elif "slot_arithmetic" in defects:
        count = accumulator_slots(tile, heads, slots)
        if count & (count - 1):
            text = f"{slots // tile.block} blocks share {count} accumulators, no power of two"
            found["refused"] = ("ModelFault", f'"hang", "{text}"')
        marks = unfinished_blocks(tile, heads, slots)
        found["unfinished"] = marks.nonzero().flatten().tolist()
    return found


def _attention_backward(scenario: Scenario, values: dict[str, Any]) -> dict[str, Any]:
    asked = scenario.kernels.modelled
    release = release_table(asked.cudnn_frontend)
    defects = resolve_defects(asked.defects, release.defects[asked.arch])
    sm90 = asked.arch == "sm90"
    masks = ("d785" if sm90 else "d877") not in defects
    return {
        "release": release.version,
        "arch": asked.arch,
        "masks": masks,
        "hangs": values["has_lengths"] and (not masks if sm90 else "d433" in defects),
        "drops_late_slots": "d298" in defects,
        "mixes": sm90 and "d384" in defects and values["attention_heads"] % 64 != 0,
    }


_RULES = {
    "indexer_backward": _indexer_backward,
    "sparse_attn_score_recompute": _score_recompute,
    "sparse_attention_backward": _attention_backward,
}
