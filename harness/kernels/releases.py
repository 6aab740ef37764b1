"""One typed table of what each frontend release does; no version number appears anywhere else.

Built as a history: every release is the one before it with the changes named. Releases before 1.24
hold no DSA. Where a rule was read in one release only, the table says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Literal

from harness.kernels import signatures
from harness.kernels.signatures import Signature

Arch = Literal["sm90", "sm100"]
ARCHES: tuple[Arch, ...] = ("sm90", "sm100")


class MaskAlignment(StrEnum):
    """Where the causal diagonal of a q x k rectangle starts."""

    BOTTOM_RIGHT = "bottom_right"
    """Last row sees every key: limit of row r is (Sk * ratio - Sq + r + 1) // ratio."""
    TOP_LEFT = "top_left"
    """First row sees its own key: limit of row r is (offset + r + 1) // ratio."""


class SizeRule(StrEnum):
    """How many query rows a BSHD call may have against its keys. Offsets are ignored."""

    NONE = "none"
    WHOLE_BLOCKS = "whole_blocks"
    """Sq <= Sk * ratio."""
    PARTIAL_BLOCK = "partial_block"
    """Sq <= Sk * ratio + ratio - 1."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardRules:
    """What ``indexer_forward_wrapper`` does on one architecture.

    Attributes:
        heads: Query heads per key head it serves.
        tokens_per_tile: Rows that one tile packs, by heads: the grid is rounded up to them.
        size_rule: Rows against keys, BSHD.
        padded_view: The result is a view of rows of ceil4(Sk) floats when Sk % 4 is not 0.
        strict_error: Exception type of head, dtype-independent shape and dimension errors.
        column_guard: Columns behind max_seqlen_k are not stored under THD.
        gives_lse: ``return_lse`` is served.
        fixed_tuning: Tuning arguments other than the defaults are refused.
        empty_without_launch: Sk = 0 gives the empty result.
    """

    heads: tuple[int, ...]
    tokens_per_tile: Mapping[int, int]
    size_rule: SizeRule
    padded_view: bool
    strict_error: type[Exception]
    column_guard: bool
    gives_lse: bool = False
    fixed_tuning: bool = False
    empty_without_launch: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class TopKRules:
    """What ``indexer_top_k_wrapper`` does; the same on every architecture it runs on.

    Attributes:
        repairs_layout: Strided or misaligned inputs are copied; before, the launch refuses them.
        checks_extents: Zero rows, columns or next_n are refused.
    """

    repairs_layout: bool = False
    checks_extents: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Release:
    """One release of nvidia-cudnn-frontend, as far as its scoring kernels go.

    Attributes:
        version: Release name.
        mask_alignment: Causal alignment of forward and fused top-k.
        accepts_causal_offsets: Forward takes ``q_causal_offsets``.
        fp32_weights: Indexer weights may be fp32.
        forward: Rules per architecture; an architecture that is missing is refused at run time.
        top_k: Rules per architecture.
        fused: Heads served by the fused top-k per architecture, empty before it existed.
        fused_size_rule: Rows against keys of the fused top-k, BSHD and the THD maxima.
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

_R1_24_0 = Release(
    version="1.24.0",
    mask_alignment=MaskAlignment.BOTTOM_RIGHT,
    fp32_weights=False,
    forward=_frozen(sm100=_FORWARD_SM100_1_24),
    top_k=_frozen(sm100=TopKRules()),
    fused=_frozen(),
    fused_size_rule=SizeRule.NONE,
    signatures=_frozen(
        indexer_forward_wrapper=signatures.FORWARD_1_24,
        indexer_top_k_wrapper=signatures.TOP_K_1_24,
    ),
    defects=_frozen(sm90=frozenset(), sm100=_SM100_TOP_K | _SM100_FORWARD),
)
_R1_24_1 = replace(_R1_24_0, version="1.24.1")

_R1_25_0 = replace(
    _R1_24_1,
    version="1.25.0",
    forward=_changed(_R1_24_1.forward, sm90=_FORWARD_SM90_1_25),
    top_k=_changed(_R1_24_1.top_k, sm90=TopKRules()),
    defects=_frozen(sm90=_SM100_TOP_K | _SM90_FORWARD, sm100=_SM100_TOP_K | _SM100_FORWARD),
)


def _without(defects: Mapping[Arch, frozenset[str]], *gone: str) -> Mapping[Any, Any]:
    return MappingProxyType({arch: names - set(gone) for arch, names in defects.items()})


def _with(defects: Mapping[Arch, frozenset[str]], *new: str) -> Mapping[Any, Any]:
    return MappingProxyType({arch: names | set(new) for arch, names in defects.items()})


def _forward(release: Release, arch: Arch, **changes: Any) -> ForwardRules:
    return replace(release.forward[arch], **changes)


_R1_26_0 = replace(
    _R1_25_0,
    version="1.26.0",
    mask_alignment=MaskAlignment.TOP_LEFT,
    forward=_frozen(
        sm90=_forward(_R1_25_0, "sm90", size_rule=SizeRule.NONE),
        sm100=_forward(_R1_25_0, "sm100", size_rule=SizeRule.NONE),
    ),
    signatures=_changed(_R1_25_0.signatures, indexer_forward_wrapper=signatures.FORWARD_1_26),
    defects=_with(_without(_R1_25_0.defects, "d311"), "d311_residue"),
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
    signatures=_changed(
        _R1_26_0.signatures,
        indexer_forward_wrapper=signatures.FORWARD_1_27,
        indexer_forward_top_k_wrapper=signatures.FORWARD_TOP_K_1_27,
        compress_topk_cand_buffer_size=signatures.CANDIDATE_SIZE_1_27,
        compress_topk_cand_buffer_size_thd=signatures.CANDIDATE_SIZE_THD_1_27,
    ),
    defects=_without(_R1_26_0.defects, "d446", "d406"),
)
_R1_28_0 = replace(_R1_27_0, version="1.28.0")
_R1_29_0 = replace(_R1_28_0, version="1.29.0")
_R1_29_1 = replace(_R1_29_0, version="1.29.1")
_R1_30_0 = replace(
    _R1_29_1,
    version="1.30.0",
    forward=_changed(
        _R1_29_1.forward,
        sm100=_forward(_R1_29_1, "sm100", tokens_per_tile=MappingProxyType({32: 4, 64: 2})),
    ),
)
_R1_31_0 = replace(
    _R1_30_0,
    version="1.31.0",
    fp32_weights=True,
    signatures=_changed(_R1_30_0.signatures, indexer_top_k_wrapper=signatures.TOP_K_1_31),
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
    signatures=_changed(_R1_31_0.signatures, indexer_top_k_wrapper=signatures.TOP_K_1_32),
    defects=_without(_R1_31_0.defects, "d311_residue", "short_rows"),
)

RELEASES: Mapping[str, Release] = MappingProxyType(
    {
        release.version: release
        for release in (
            _R1_24_0,
            _R1_24_1,
            _R1_25_0,
            _R1_26_0,
            _R1_27_0,
            _R1_28_0,
            _R1_29_0,
            _R1_29_1,
            _R1_30_0,
            _R1_31_0,
            _R1_32_0,
        )
    }
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
