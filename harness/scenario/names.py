"""Closed sets of names a scenario file may use, each with its meaning, in one place.

Standard library only: ranks, models and reports read the same tables as the file checks.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

CUDNN_FRONTEND_RELEASES = (
    "1.24.0",
    "1.24.1",
    "1.25.0",
    "1.26.0",
    "1.27.0",
    "1.28.0",
    "1.29.0",
    "1.29.1",
    "1.30.0",
    "1.31.0",
    "1.32.0",
)
"""Releases of nvidia-cudnn-frontend whose DSA kernels have a semantic model."""

OVERLAYS = {
    "causal_offsets": "hands the scoring kernel the causal offset of each zigzag segment",
    "layout_memo": "makes layout tables on the host, once for each microbatch",
    "scoring_plan": "decides the scorer of a call from its layout, with a reason",
    "effective_group": "computes a microbatch on its own context-parallel group",
    "graph_warnings": "warns of packed DSA with CP under CUDA graphs",
}
"""Corrections or perturbations that a scenario can switch on."""

CUDNN_OVERLAYS = ("causal_offsets", "scoring_plan")
"""Overlays of what only runs with the backend ``cudnn``."""

DEFECTS = {
    "d311": "32-bit offsets of the top-k scratch wrap around",
    "d311_residue": "the same where one aligned step of rows does not fit a launch",
    "d446": "top-k takes lanes behind the last aligned vector as candidates",
    "d406": "an odd top_k above the thread count does not compile",
    "mask_leak": "scores of one or two columns past the limit stay visible",
    "short_max_k": "scores run on past a max_seqlen_k that is too short",
    "short_max_q": "rows past a max_seqlen_q that is too short are never scored",
    "short_rows": "top-k of short misaligned rows reads past their length",
    "long_lengths": "top-k does not clamp lengths to the columns",
    "d550": "sparse indexer backward takes a local id past the keys for another batch's key",
    "foreign_ids": "sparse indexer backward takes a global id of another batch",
    "unzeroed_dk": "sparse indexer backward adds to the old contents of an fp32 d_index_k",
    "d297": "dense indexer backward clips probabilities after a flush instead of logarithms",
    "d317": "sparse attention recompute with lengths does not compile",
    "d1549": "sparse attention recompute ignores the lengths of its rows",
    "slot_arithmetic": "sparse recompute hangs or reads unfinished data at odd block counts",
    "invalid_slots": "sparse recompute counts slots whose id is no key",
    "tail_slots": "sparse recompute leaves slots past a multiple of 128 unwritten",
    "single_row": "recompute of a single query row fails on sm90",
    "long_topk_lengths": "lengths above the slots read ids past the row",
    "d384": "attention backward mixes tokens where heads are no multiple of 64",
    "d785": "attention backward on sm90 does not mask invalid ids and empty rows",
    "d877": "attention backward on sm100 does not mask invalid ids and statistics",
    "d433": "attention backward on sm100 hangs on empty rows",
    "d298": "attention backward drops dkv of slots past the number of keys",
    "tie_cap": "top-k keeps at most 1024 keys that tie at the cut",
    "candidate_cap": "top-k holds the lowest 4096 keys of the bucket of the cut",
    "nan_ids": "top-k of a row with a NaN returns uninitialised ids",
    "zero_scores": "scores are zero everywhere",
    "rounded_width": "top-k reads columns up to the next power of two",
    "over_limit": "top-k ranks one key past a row's length",
    "fixed_width": "top-k takes no width but 2048",
    "lse_over_read": "attention backward reads past its statistics",
}
"""Known defects that the kernel models can show; ``harness.kernels.defects`` has their reports."""

KERNEL_WRAPPERS = {
    "indexer_backward": "gradients of the indexer over its selected keys",
    "sparse_attention_backward": "gradients of sparse attention over the selected keys",
    "sparse_attn_score_recompute": "attention probabilities over the selected keys",
    "indexer_forward": "indexer scores of every row over all keys, masked causally",
    "indexer_top_k": "the best keys of each row of a score table",
    "indexer_forward_top_k": "both in one launch, without the score table",
    "dense_attn_score_recompute": "attention mass of every key, summed over heads, masked causally",
}
"""Wrappers that level ``kernel`` calls on their own."""
TABLE_WRAPPERS = ("indexer_backward", "sparse_attention_backward", "sparse_attn_score_recompute")
"""Of these, the ones that are given a table of ids."""

PERTURBATIONS = {
    "device": "the indexer's keys are on another device than its queries",
    "dtype": "the indexer's keys have another dtype than its queries",
    "view": "the indexer's queries are a strided view of a larger tensor, equal in value",
    "tp_slice": "the indexer's queries and weights hold one half of the heads, as if they were "
    "split over tensor-parallel ranks",
    "gradient_arity": "the fused function's backward returns one gradient less than it had inputs",
    "missing_starts": "the rows' first keys are missing, their last ones are there",
    "missing_ends": "the rows' last keys are missing, their first ones are there",
}
"""Facts of the production call that ``perturb`` can break."""

BOUNDARIES = {
    "own": "each list is a tensor of its own",
    "shared": "the lists of the keys are those of the queries, the same objects",
    "one": "real and padded lists of queries and keys are all one object",
    "real_only": "there are no padded lists: the real ones stand in for them",
    "query_only": "there are no lists of the keys: those of the queries stand in for them",
    "strided": "each list is every other element of a wider tensor",
    "int64": "each list is of 64-bit integers",
}
"""Ways to hand over the lists of boundaries."""

THIRD_PARTY_HOOKS = {
    "run_fused_dsa_attention": "indexer and attention in one",
    "run_fused_qk_topk": "scores and top-k",
    "run_fused_qk_topk_with_loss": "scores, top-k and the sparse indexer loss",
}
"""Backend hooks that a third party may stand before."""

HOOK_SIGNATURES = {
    "exact": "the keywords of the released hook, and no other",
    "extended": "the released keywords, and the optional facts by name",
    "var_keyword": "any keyword (`**kwargs`)",
    "positional_only": "the optional facts by position only, so that no keyword reaches them",
    "opaque": "no signature to be had, as of a builtin",
    "replaced": "a new callable object for every microbatch, `var_keyword` and `exact` by turns, "
    "each with the id of the one before, which is dead",
}
"""Signatures of a third party's hook."""

BEHAVIOURS = {
    "chunk_local_window": "each local chunk sees only the first keys of its sequence, as many as "
    "the row's place in the chunk, as if its causal offset were zero",
    "half_heads": "scores are summed over the first half of the indexer's heads, as if the rest "
    "were on another tensor-parallel rank",
}
"""Faulty behaviours whose prediction the picks are compared with."""

RENAMED_KEYS = {
    "cuda_graph_scope": "cuda_graph_modules",
    "hybrid_context_parallel": "dynamic_context_parallel",
    "cp_size": "context_parallel_size",
    "tp_size": "tensor_model_parallel_size",
    "topk": "dsa_indexer_topk",
    "cu_seqlens": "sequences",
    "seqlens": "sequences",
    "behaviour": "as",
}
"""Names users bring from other versions and tools, to the key that replaces them."""

INDEXER_HEAD_DIM = 128
"""The scoring kernels of every cudnn-frontend release take this head dimension only."""
FLASH_MLA_VALUE_DIM = 512
"""``kv_lora_rank`` of the fused attention; any other ends in Megatron's fallback."""
FLASH_MLA_ROPE_DIM = 64
"""``qk_pos_emb_head_dim`` of the fused attention."""
TOP_K_MAX = 2048
"""Documented upper bound of ``top_k`` in cudnn-frontend's ``indexer_top_k_wrapper``."""


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """Return the candidate a mistyped name most likely stands for, None when none is close."""
    known = list(candidates)
    if RENAMED_KEYS.get(name) in known:
        return RENAMED_KEYS[name]
    folded = {candidate.replace("-", "_").lower(): candidate for candidate in known}
    plain = name.replace("-", "_").lower()
    close = difflib.get_close_matches(plain, folded, n=1, cutoff=0.6)
    return folded[close[0]] if close else None


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """Return ``; did you mean X?`` or an empty string, to be put behind a message."""
    found = nearest(name, candidates)
    return f"; did you mean {found}?" if found else ""
