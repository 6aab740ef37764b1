"""One typed table of what each frontend release does; no version number appears anywhere else.

Built as a history: every release is the one before it with the changes named. Releases before 1.24
hold no DSA. Where a rule was read in one release only, the table says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from harness.kernels import signatures, training_signatures
from harness.kernels.rules import (
    ARCHES,
    Arch,
    AttentionBackwardRules,
    DenseBackwardRules,
    ForwardRules,
    IndexerBackwardRules,
    LongLengths,
    MaskAlignment,
    MaskedCells,
    RecomputeRules,
    ScoreGradient,
    SizeRule,
    TopKRules,
)
from harness.kernels.signatures import Signature

__all__ = [
    "ARCHES",
    "RELEASES",
    "Arch",
    "ForwardRules",
    "MaskAlignment",
    "Release",
    "SizeRule",
    "TopKRules",
    "release_table",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Release:
    """One release of nvidia-cudnn-frontend, as far as its DSA kernels go.

    Attributes:
        version: Release name.
        mask_alignment: Causal alignment of forward and fused top-k.
        accepts_causal_offsets: Forward takes ``q_causal_offsets``.
        fp32_weights: Indexer weights may be fp32.
        forward: Rules per architecture; an architecture that is missing is refused at run time.
        top_k: Rules per architecture.
        fused: Heads served by the fused top-k per architecture, empty before it existed.
        fused_size_rule: Rows against keys of the fused top-k, BSHD and the THD maxima.
        indexer_backward: Rules per architecture, as all that follow.
        dense_backward: Of the dense indexer backward.
        recompute: Of the four score recompute wrappers.
        attention_backward: Of the sparse attention backward.
        signatures: Wrapper name to signature; a wrapper that is missing does not exist.
        defects: Names of ``harness.kernels.defects`` per architecture.
    """

    version: str
    mask_alignment: MaskAlignment
    fp32_weights: bool
    forward: Mapping[Arch, ForwardRules]
    top_k: Mapping[Arch, TopKRules]
    fused: Mapping[Arch, tuple[int, ...]]
    fused_size_rule: SizeRule
    indexer_backward: Mapping[Arch, IndexerBackwardRules]
    dense_backward: Mapping[Arch, DenseBackwardRules]
    recompute: Mapping[Arch, RecomputeRules]
    attention_backward: Mapping[Arch, AttentionBackwardRules]
    signatures: Mapping[str, Signature]
    defects: Mapping[Arch, frozenset[str]]

    @property
    def accepts_causal_offsets(self) -> bool:
        """Whether forward has the ``q_causal_offsets`` parameter."""
        return "q_causal_offsets" in self.signatures["indexer_forward_wrapper"].parameters


def _frozen(**values: Any) -> Mapping[Any, Any]:
    return MappingProxyType(values)


def _changed(mapping: Mapping[Any, Any], **values: Any) -> Mapping[Any, Any]:
    return MappingProxyType({**mapping, **values})


def _without(defects: Mapping[Arch, frozenset[str]], *gone: str) -> Mapping[Any, Any]:
    return MappingProxyType({arch: names - set(gone) for arch, names in defects.items()})


def _with(defects: Mapping[Arch, frozenset[str]], *new: str) -> Mapping[Any, Any]:
    return MappingProxyType({arch: names | set(new) for arch, names in defects.items()})


def _shipped(defects: Mapping[Arch, frozenset[str]], *, sm100: str) -> Mapping[Any, Any]:
    return _changed(defects, sm100=defects["sm100"] | {sm100})


def _forward(release: Release, arch: Arch, **changes: Any) -> ForwardRules:
    return replace(release.forward[arch], **changes)


def _edited(table: Mapping[Arch, Any], **changes: Any) -> Mapping[Any, Any]:
    """Change the same rules on every architecture."""
    return MappingProxyType({arch: replace(rules, **changes) for arch, rules in table.items()})


_SM100_TOP_K = frozenset({"d311", "d446", "d406", "short_rows", "long_lengths"})
_SM100_FORWARD = frozenset({"short_max_k", "short_max_q"})
"""Read in 1.32; nothing in the change lists touches them, so assumed for every release."""
_SM90_FORWARD = frozenset({"mask_leak", "short_max_q"})

_FORWARD_SM100_1_24 = ForwardRules(
    heads=(32, 64),
    tokens_per_tile=MappingProxyType({32: 2, 64: 2}),
    size_rule=SizeRule.WHOLE_BLOCKS,
    padded_view=True,
    strict_error=ValueError,
    column_guard=False,
)
_FORWARD_SM90_1_25 = ForwardRules(
    heads=(32, 64),
    tokens_per_tile=MappingProxyType({32: 4, 64: 2}),
    size_rule=SizeRule.WHOLE_BLOCKS,
    padded_view=False,
    strict_error=AssertionError,
    column_guard=True,
    fixed_tuning=True,
)

_SM90_TRAINING = frozenset(
    {"unzeroed_dk", "d384", "d785", "invalid_slots", "tail_slots", "long_topk_lengths"}
    | {"single_row"}
)
_SM100_TRAINING = frozenset(
    {"foreign_ids", "unzeroed_dk", "d297", "d317", "d1549", "slot_arithmetic", "invalid_slots"}
    | {"d877", "d433", "d298", "long_topk_lengths", "lse_over_read"}
)

_BACKWARD_1_24 = IndexerBackwardRules(global_only=True, rows_on_grid_y=True)
_RECOMPUTE_SM90_1_24 = RecomputeRules(masked=MaskedCells.ZERO, unwritten_slots=False)

_R1_24_0 = Release(
    version="1.24.0",
    mask_alignment=MaskAlignment.BOTTOM_RIGHT,
    fp32_weights=False,
    forward=_frozen(sm100=_FORWARD_SM100_1_24),
    top_k=_frozen(sm100=TopKRules()),
    fused=_frozen(),
    fused_size_rule=SizeRule.NONE,
    indexer_backward=_frozen(
        sm90=replace(_BACKWARD_1_24, checks_owner=True),
        sm100=replace(_BACKWARD_1_24, overwrites_index_score=True),
    ),
    dense_backward=_frozen(
        sm90=DenseBackwardRules(
            score_gradient=ScoreGradient.TORCH, size_rule=SizeRule.WHOLE_BLOCKS, zeroes_row=True
        ),
        sm100=DenseBackwardRules(size_rule=SizeRule.WHOLE_BLOCKS, zeroes_row=True),
    ),
    recompute=_frozen(
        sm90=_RECOMPUTE_SM90_1_24,
        sm100=RecomputeRules(masked=MaskedCells.ZERO_IN_BLOCKS),
    ),
    attention_backward=_frozen(
        sm90=AttentionBackwardRules(long_lengths=LongLengths.READ_ON, scales_first=False),
        sm100=AttentionBackwardRules(long_lengths=LongLengths.READ_ON),
    ),
    signatures=_frozen(
        indexer_forward_wrapper=signatures.FORWARD_1_24,
        indexer_top_k_wrapper=signatures.TOP_K_1_24,
        indexer_backward_wrapper=training_signatures.INDEXER_BACKWARD_1_24,
        dense_indexer_backward_wrapper=training_signatures.DENSE_BACKWARD_1_24,
        dense_attn_score_recompute_wrapper=training_signatures.DENSE_ATTENTION_1_24,
        dense_indexer_score_recompute_wrapper=training_signatures.DENSE_INDEXER_1_24,
        sparse_attn_score_recompute_wrapper=training_signatures.SPARSE_ATTENTION_1_24,
        sparse_indexer_score_recompute_wrapper=training_signatures.SPARSE_INDEXER_1_24,
        sparse_attention_backward_wrapper=training_signatures.ATTENTION_BACKWARD_1_24,
        local_to_global_wrapper=training_signatures.LOCAL_TO_GLOBAL_1_24,
        compactify_wrapper=training_signatures.COMPACTIFY_1_24,
    ),
    defects=_frozen(sm90=_SM90_TRAINING, sm100=_SM100_TOP_K | _SM100_FORWARD | _SM100_TRAINING),
)
_R1_24_1 = replace(_R1_24_0, version="1.24.1")

_R1_25_0 = replace(
    _R1_24_1,
    version="1.25.0",
    forward=_changed(_R1_24_1.forward, sm90=_FORWARD_SM90_1_25),
    top_k=_changed(_R1_24_1.top_k, sm90=TopKRules()),
    recompute=_changed(
        _R1_24_1.recompute, sm90=replace(_RECOMPUTE_SM90_1_24, fills_caller_out=True)
    ),
    defects=_changed(
        _R1_24_1.defects, sm90=_R1_24_1.defects["sm90"] | _SM100_TOP_K | _SM90_FORWARD
    ),
)


_R1_26_0 = replace(
    _R1_25_0,
    version="1.26.0",
    mask_alignment=MaskAlignment.TOP_LEFT,
    forward=_frozen(
        sm90=_forward(_R1_25_0, "sm90", size_rule=SizeRule.NONE),
        sm100=_forward(_R1_25_0, "sm100", size_rule=SizeRule.NONE),
    ),
    indexer_backward=_edited(_R1_25_0.indexer_backward, global_only=False, rows_on_grid_y=False),
    dense_backward=_frozen(sm90=DenseBackwardRules(), sm100=DenseBackwardRules(row_pair=2)),
    recompute=_frozen(
        sm90=RecomputeRules(masked=MaskedCells.ZERO_IN_TILES, fills_caller_out=True),
        sm100=RecomputeRules(
            masked=MaskedCells.MINUS_INF, fills_caller_out=True, exponent_floor=True
        ),
    ),
    attention_backward=_changed(
        _R1_25_0.attention_backward,
        sm100=AttentionBackwardRules(long_lengths=LongLengths.SCATTER_READS_ON),
    ),
    signatures=_changed(
        _R1_25_0.signatures,
        indexer_forward_wrapper=signatures.FORWARD_1_26,
        indexer_backward_wrapper=training_signatures.INDEXER_BACKWARD_1_26,
        dense_indexer_backward_wrapper=training_signatures.DENSE_BACKWARD_1_26,
        dense_attn_score_recompute_wrapper=training_signatures.DENSE_ATTENTION_1_26,
        dense_indexer_score_recompute_wrapper=training_signatures.DENSE_INDEXER_1_26,
    ),
    defects=_shipped(
        _with(_without(_R1_25_0.defects, "d311", "d317", "d297", "d298"), "d311_residue"),
        sm100="d550",
    ),
)

_R1_27_0 = replace(
    _R1_26_0,
    version="1.27.0",
    forward=_frozen(
        sm90=_forward(
            _R1_26_0,
            "sm90",
            heads=(16, 32, 64),
            tokens_per_tile=MappingProxyType({16: 8, 32: 4, 64: 2}),
            gives_lse=True,
        ),
        sm100=_forward(_R1_26_0, "sm100", size_rule=SizeRule.WHOLE_BLOCKS, padded_view=False),
    ),
    fused=_frozen(sm100=(32, 64)),
    fused_size_rule=SizeRule.WHOLE_BLOCKS,
    indexer_backward=_edited(_R1_26_0.indexer_backward, tensor_grad_loss=True),
    dense_backward=_edited(_R1_26_0.dense_backward, tensor_grad_loss=True),
    attention_backward=_edited(_R1_26_0.attention_backward, checks_shapes=True),
    signatures=_changed(
        _R1_26_0.signatures,
        indexer_forward_wrapper=signatures.FORWARD_1_27,
        indexer_forward_top_k_wrapper=signatures.FORWARD_TOP_K_1_27,
        compress_topk_cand_buffer_size=signatures.CANDIDATE_SIZE_1_27,
        compress_topk_cand_buffer_size_thd=signatures.CANDIDATE_SIZE_THD_1_27,
        indexer_backward_wrapper=training_signatures.INDEXER_BACKWARD_1_27,
        dense_indexer_backward_wrapper=training_signatures.DENSE_BACKWARD_1_27,
        dense_attn_score_recompute_wrapper=training_signatures.DENSE_ATTENTION_1_27,
        dense_indexer_score_recompute_wrapper=training_signatures.DENSE_INDEXER_1_27,
    ),
    defects=_without(_R1_26_0.defects, "d446", "d406", "d384", "d433"),
)
_R1_28_0 = replace(
    _R1_27_0,
    version="1.28.0",
    indexer_backward=_frozen(
        sm90=replace(_R1_27_0.indexer_backward["sm90"], checks_first=True),
        sm100=replace(_R1_27_0.indexer_backward["sm100"], checks_first=True, second_backend=True),
    ),
    attention_backward=_changed(
        _R1_27_0.attention_backward,
        sm100=replace(_R1_27_0.attention_backward["sm100"], own_kernels=((576, 16),)),
    ),
    signatures=_changed(
        _R1_27_0.signatures, indexer_backward_wrapper=training_signatures.INDEXER_BACKWARD_1_28
    ),
    defects=_without(_R1_27_0.defects, "unzeroed_dk"),
)
_R1_29_0 = replace(
    _R1_28_0,
    version="1.29.0",
    indexer_backward=_changed(
        _R1_28_0.indexer_backward,
        sm100=replace(
            _R1_28_0.indexer_backward["sm100"], overwrites_index_score=False, positive_width=True
        ),
    ),
    attention_backward=_frozen(
        sm90=replace(_R1_28_0.attention_backward["sm90"], long_lengths=LongLengths.CLAMPED),
        sm100=replace(
            _R1_28_0.attention_backward["sm100"],
            deterministic_heads=(16, 32, 64, 96, 128),
            aligned_lse=True,
            own_kernels=((576, 16), (576, 32)),
        ),
    ),
    signatures=_changed(
        _R1_28_0.signatures,
        sparse_attention_backward_wrapper=training_signatures.ATTENTION_BACKWARD_1_29,
    ),
    defects=_without(_R1_28_0.defects, "d785", "d877", "d550"),
)
_R1_29_1 = replace(_R1_29_0, version="1.29.1")
_R1_30_0 = replace(
    _R1_29_1,
    version="1.30.0",
    forward=_changed(
        _R1_29_1.forward,
        sm100=_forward(_R1_29_1, "sm100", tokens_per_tile=MappingProxyType({32: 4, 64: 2})),
    ),
    recompute=_changed(
        _R1_29_1.recompute,
        sm90=replace(
            _R1_29_1.recompute["sm90"], masked=MaskedCells.MINUS_INF, repairs_single_row=True
        ),
    ),
    attention_backward=_changed(
        _R1_29_1.attention_backward,
        sm90=replace(_R1_29_1.attention_backward["sm90"], scales_first=True),
        sm100=replace(
            _R1_29_1.attention_backward["sm100"], own_kernels=((576, 16), (576, 32), (576, 96))
        ),
    ),
)
_R1_31_0 = replace(
    _R1_30_0,
    version="1.31.0",
    fp32_weights=True,
    signatures=_changed(_R1_30_0.signatures, indexer_top_k_wrapper=signatures.TOP_K_1_31),
    defects=_without(_R1_30_0.defects, "slot_arithmetic"),
)
_STRICT_TOP_K = TopKRules(repairs_layout=True, checks_extents=True)
_R1_32_0 = replace(
    _R1_31_0,
    version="1.32.0",
    forward=_changed(
        _R1_31_0.forward,
        sm100=_forward(
            _R1_31_0,
            "sm100",
            heads=(4, 8, 16, 32, 64),
            tokens_per_tile=MappingProxyType({4: 8, 8: 8, 16: 8, 32: 4, 64: 2}),
            size_rule=SizeRule.PARTIAL_BLOCK,
            empty_without_launch=True,
        ),
    ),
    top_k=_frozen(sm90=_STRICT_TOP_K, sm100=_STRICT_TOP_K),
    fused=_frozen(sm100=(4, 8, 16, 32, 64)),
    fused_size_rule=SizeRule.PARTIAL_BLOCK,
    indexer_backward=_changed(
        _R1_31_0.indexer_backward,
        sm100=replace(
            _R1_31_0.indexer_backward["sm100"],
            small_heads=(32,),
            heads_error=ValueError,
            deterministic=True,
        ),
    ),
    recompute=_edited(_R1_31_0.recompute, converts_ids=True, odd_heads=(96,)),
    signatures=_changed(
        _R1_31_0.signatures,
        indexer_top_k_wrapper=signatures.TOP_K_1_32,
        indexer_backward_wrapper=training_signatures.INDEXER_BACKWARD_1_32,
        dense_indexer_backward_wrapper=training_signatures.DENSE_BACKWARD_1_32,
        sparse_attention_backward_wrapper=training_signatures.ATTENTION_BACKWARD_1_32,
    ),
    defects=_without(_R1_31_0.defects, "d311_residue", "short_rows"),
)

_HISTORY = (
    *(_R1_24_0, _R1_24_1, _R1_25_0, _R1_26_0, _R1_27_0, _R1_28_0),
    *(_R1_29_0, _R1_29_1, _R1_30_0, _R1_31_0, _R1_32_0),
)
RELEASES: Mapping[str, Release] = MappingProxyType(
    {release.version: release for release in _HISTORY}
)
"""Release name to table row, oldest first."""


def release_table(version: str) -> Release:
    """Return the table row of a release.

    Raises:
        ValueError: No such release is modelled; the message lists those that are.
    """
    if version not in RELEASES:
        raise ValueError(
            f"cudnn_frontend {version!r} is not modelled; expected one of {list(RELEASES)}"
        )
    return RELEASES[version]
