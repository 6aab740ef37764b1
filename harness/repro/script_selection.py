"""What the templates of selection scripts (levels ``scorer`` and ``attention``) are filled with."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from math import log2
from typing import Any

from harness.kernels.defects import resolve_defects
from harness.kernels.releases import release_table
from harness.kernels.rules import MaskAlignment
from harness.kernels.topk_plan import topk_plan
from harness.layout import Pack
from harness.reference.operands import MARGIN_UNIT
from harness.repro.refusals import ExportRefusedError
from harness.scenario.rules.expectations import right_plan
from harness.scenario.rules.lengths import build_pack
from harness.scenario.spec import MicrobatchSpec, Scenario

_UNFUSED = ("decline", "unfused_bounds")
_FUSED = ("plain_causal", "packed_single", "packed_thd")
_LINE = 88
VECTOR = 8
"""Elements of a load: a longer row has its first aligned address inside it."""
_FEWEST_THREADS = 256
_UINT16_SAFE = 57344
"""Keys up to which no lane behind a row has an id of more than 16 bits (a tile is 8192 wide)."""
_DTYPES = {"bf16": "bfloat16", "fp32": "float32", "fp64": "float64"}


def selection_context(scenario: Scenario) -> dict[str, Any]:
    """Return the values of the templates.

    Raises:
        ExportRefusedError: when the modelled release has no rules for what the case calls.
    """
    model, values = scenario.model, scenario.values
    cudnn = scenario.kernels.dsa_kernel_backend == "cudnn"
    attention = scenario.level == "attention"
    packs = [_Pack.of(scenario, microbatch) for microbatch in scenario.microbatches]
    exact = not attention and values.scores in ("ties", "integers")
    fields = _fields(packs, noted=cudnn and any(pack.may_stray for pack in packs))
    context: dict[str, Any] = {
        "attention": attention,
        "cudnn": cudnn,
        "explicit": "explicit" in fields,
        "unpacked": "packed" in fields,
        "own_keys": "k" in fields,
        "tails": "tail" in fields,
        "noted": "plan" in fields,
        "cp": scenario.parallel.context_parallel_size,
        "ranks": _ranks(scenario),
        "seeds": list(values.seeds),
        "pack_fields": " ".join(fields),
        "packs": [_pack_call(pack, fields) for pack in packs],
        "heads": model.dsa_indexer_n_heads,
        "dim": model.dsa_indexer_head_dim,
        "topk": model.dsa_indexer_topk,
        "dtype": _DTYPES[values.dtype],
        "scores": values.scores,
        "reference_dtype": _DTYPES[scenario.reference.dtype],
        "margin_unit": "0.0" if exact else f"2.0**{round(log2(MARGIN_UNIT))}",
        "model": model,
        "overlay": "causal_offsets" in scenario.overlays,
        "score_chunk_bytes": scenario.kernels.score_chunk_bytes,
        "watched": False,
        "alone": False,
        "kernels_line": kernels_line(scenario),
    }
    return context | (_kernels(scenario, packs) if cudnn else {})


@dataclass(frozen=True, kw_only=True, slots=True)
class _Pack:
    """One microbatch; of an unpacked batch, one of its equal sequences.

    Attributes:
        plans: Plans that are no wrong path for it.
        right: Plan that its layout calls for.
    """

    spec: MicrobatchSpec
    layout: Pack
    plans: tuple[str, ...]
    right: str

    @classmethod
    def of(cls, scenario: Scenario, microbatch: MicrobatchSpec) -> _Pack:
        right = str(right_plan(scenario, microbatch).plan)
        plans: tuple[str, ...] = _FUSED if right not in _UNFUSED else (*_FUSED, *_UNFUSED)
        if scenario.expect.plan is not None:
            plans = (scenario.expect.plan,)
        layout = build_pack(microbatch, scenario.parallel.context_parallel_size)
        return cls(spec=microbatch, layout=layout, plans=plans, right=right)

    @property
    def packed(self) -> bool:
        return self.spec.qkv_format == "thd"

    @property
    def may_stray(self) -> bool:
        """Whether some build takes another fused path for it than the right one.

        Released builds send packs without CP, and what is not packed, through scores in torch.
        """
        split = self.packed and self.layout.cp_size > 1 and self.right in _FUSED
        return not split or self.plans not in (_FUSED, (self.right,))

    def said(self, field: str) -> str:
        """Return the value of a field of the script's ``Pack``, as Python."""
        layout = self.layout
        values: dict[str, Any] = {
            "real": layout.q_lengths,
            "q": layout.q_padded,
            "k_real": layout.k_lengths,
            "k": layout.k_padded,
            "tail": layout.tail_padding,
            "k_tail": layout.key_tail_padding,
            "batch": 1 if self.packed else len(self.spec.sequences),
            "packed": self.packed,
            "explicit": self.spec.key_positions == "explicit",
            "plan": self.plans,
        }
        value = values[field]
        return _tuple(value) if isinstance(value, tuple) else repr(value)

    @property
    def max_segment_keys(self) -> int:
        """Most score columns of a THD call on any rank."""
        longest, size = self.layout.max_seqlen_k, self.layout.cp_size
        half = longest // (2 * size)
        return max(max((r + 1) * half, longest - r * half) for r in range(size))


def _pack_call(pack: _Pack, fields: list[str]) -> str:
    """Return the call that makes one pack, over several lines where it is long."""
    text = ", ".join(f"{field}={pack.said(field)}" for field in fields)
    if len(text) <= _LINE:
        return f"    Pack({text}),"
    indent = " " * 8
    lines = textwrap.wrap(
        text,
        _LINE + 4,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(["    Pack(", *lines, "    ),"])


def _fields(packs: list[_Pack], *, noted: bool) -> list[str]:
    """Fields of the script's ``Pack`` that say something in this case."""
    fields = ["real", "q"]
    if any(
        (p.layout.k_lengths, p.layout.k_padded) != (p.layout.q_lengths, p.layout.q_padded)
        for p in packs
    ):
        fields += ["k_real", "k"]
    if any(p.layout.tail_padding or p.layout.key_tail_padding for p in packs):
        fields += ["tail", "k_tail"]
    if not all(p.packed for p in packs):
        fields += ["batch", "packed"]
    if any(p.spec.key_positions == "explicit" for p in packs):
        fields.append("explicit")
    return [*fields, "plan"] if noted else fields


def kernels_line(scenario: Scenario) -> str:
    """Statement of the script's ``main`` that says what ran."""
    if scenario.kernels.dsa_kernel_backend == "none":
        return 'print("kernels: none, Megatron\'s own torch path")'
    modelled = scenario.kernels.modelled
    package, asked = "nvidia-cudnn-frontend", f"{modelled.cudnn_frontend} {modelled.arch}"
    lines = (
        f"found = f\"real {package} {{version('{package}')}}\" if REAL else None",
        f'print("kernels:", found or "modelled {package} {asked}, in this file")',
    )
    return "\n    ".join(lines)


def _ranks(scenario: Scenario) -> str:
    size = scenario.parallel.context_parallel_size
    if scenario.level == "attention":
        return f"range({size})"
    ranks = scenario.logical_cp_ranks
    return f"range({size})" if ranks == tuple(range(size)) else repr(list(ranks))


def _tuple(values: tuple[Any, ...]) -> str:
    parts = ", ".join(f'"{v}"' if isinstance(v, str) else str(v) for v in values)
    return f"({parts},)" if len(values) == 1 else f"({parts})"


def _kernels(scenario: Scenario, packs: list[_Pack]) -> dict[str, Any]:
    """Rules of the modelled release that the caller's calls can run into."""
    asked = scenario.kernels.modelled
    release = release_table(asked.cudnn_frontend)
    forward, top_k = release.forward.get(asked.arch), release.top_k.get(asked.arch)
    if forward is None or top_k is None:
        raise ExportRefusedError(
            f"{scenario.id}: nvidia-cudnn-frontend {release.version} has no scoring kernels for "
            f"{asked.arch}: every call is refused, which needs no script; use sm100 or a later one"
        )
    defects = resolve_defects(asked.defects, release.defects[asked.arch])
    top_left = release.mask_alignment is MaskAlignment.TOP_LEFT
    topk, underflow = scenario.model.dsa_indexer_topk, scenario.values.scores == "underflow"
    # With the right alignment a row has topk finite scores, unless they underflow or lie behind
    # another sequence's keys.
    few = underflow or (top_left and "causal_offsets" not in scenario.overlays)
    few = few or any(pack.may_stray for pack in packs)
    d446, short_rows = "d446" in defects and few, "short_rows" in defects and topk < VECTOR
    d406 = "d406" in defects and topk % 2 == 1 and topk > _FEWEST_THREADS
    strided = forward.padded_view and any(
        pack.right == "packed_thd" and pack.max_segment_keys % 4 for pack in packs
    )
    return {
        "release": release.version,
        "arch": asked.arch,
        "capability": {"sm90": "(9, 0)", "sm100": "(10, 0)"}[asked.arch],
        "top_left": top_left,
        "forward_heads": tuple(forward.heads),
        "heads_error": forward.strict_error.__name__,
        "strided": strided and not top_k.repairs_layout,
        "d446": d446,
        "d406": d406,
        "short_rows": short_rows,
        "raises": d446 or d406,
        "watched": d446 or short_rows,
        "scores_underflow": underflow,
        "model_notes": _notes(top_left, d446),
        **_candidates(packs),
    }


def _candidates(packs: list[_Pack]) -> dict[str, Any]:
    """How many candidates of the refinement fit, by the largest call; 16-bit ids up to 65536."""
    # Each half of a single sequence is a call of its own.
    rows = max(
        max(p.layout.rows_per_rank // (2 if p.right == "packed_single" else 1), 1) for p in packs
    )
    keys = max(max(pack.layout.total_k, 1) for pack in packs)
    plan = topk_plan(n_rows=rows, num_cols=keys, top_k=1)
    return {
        "wide_ids": plan.wide_ids or keys <= _UINT16_SAFE,
        "spills": plan.spills,
        "capacity": plan.capacity,
        "capacity_small": not plan.spills and plan.capacity < keys + plan.tile,
    }


def _notes(top_left: bool, d446: bool) -> list[str]:
    if top_left:
        lines = [
            "Mask: top-left; row r of a chunk sees keys 0 to q_causal_offsets + r, and the offset",
            "is 0 where the caller gives none (https://github.com/NVIDIA/cudnn-frontend/pull/316).",
        ]
    else:
        lines = ["Mask: bottom-right; the last row of a chunk sees all keys handed over."]
    if d446:
        lines += [
            "Defect 446: a row with fewer than top_k finite scores ranks columns past its end",
            "(https://github.com/NVIDIA/cudnn-frontend/issues/446).",
        ]
    return lines
