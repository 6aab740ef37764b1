"""Parameter lists of the wrappers that training adds: recompute, backward and id helpers."""

from __future__ import annotations

import inspect
from typing import Any

from harness.kernels.signatures import Signature, append, build, insert_before

_THD: dict[str, Any] = {
    "cu_seqlens_q": None,
    "cu_seqlens_k": None,
    "max_seqlen_q": None,
    "max_seqlen_k": None,
}
_GRADIENTS: dict[str, Any] = {"d_index_q": None, "d_weights": None, "d_index_k": None}
_BLOCK_SCALED: dict[str, Any] = {
    "precision": "bf16",
    "q_scale": None,
    "k_scale": None,
    "cu_seqlens_q_scale_padded": None,
    "cu_seqlens_k_scale_padded": None,
    "sf_vec_size": 32,
}


def keyword_only(signature: Signature, **defaults: Any) -> Signature:
    """Return ``signature`` with keyword-only parameters added."""
    kind = inspect.Parameter.KEYWORD_ONLY
    added = [inspect.Parameter(name, kind, default=value) for name, value in defaults.items()]
    return Signature([*signature.parameters.values(), *added])


_SPARSE_BACKWARD = (
    "index_q",
    "weights",
    "index_k",
    "attn_score",
    "index_score",
    "topk_indices",
)
INDEXER_BACKWARD_1_24 = build(
    *_SPARSE_BACKWARD,
    sm_scale=1.0,
    loss_coeff=1.0,
    grad_loss=1.0,
    block_I=128,
    **_GRADIENTS,
    stream=None,
)
INDEXER_BACKWARD_1_26 = insert_before(INDEXER_BACKWARD_1_24, "d_index_q", topk_indices_global=False)
INDEXER_BACKWARD_1_27 = build(
    *_SPARSE_BACKWARD,
    "grad_loss",
    sm_scale=1.0,
    loss_coeff=1.0,
    block_I=128,
    topk_indices_global=False,
    **_GRADIENTS,
    stream=None,
)
INDEXER_BACKWARD_1_28 = keyword_only(INDEXER_BACKWARD_1_27, backend="default")
INDEXER_BACKWARD_1_32 = keyword_only(
    INDEXER_BACKWARD_1_28, workspace=None, deterministic=False, deterministic_dk_planes=96
)

_DENSE_BACKWARD = (
    "index_q",
    "weights",
    "index_k",
    "attn_score",
    "attn_l1norm",
    "index_score",
    "index_lse",
)
DENSE_BACKWARD_1_24 = build(
    *_DENSE_BACKWARD,
    sm_scale=1.0,
    loss_coeff=1.0,
    grad_loss=1.0,
    block_I=128,
    ratio=1,
    **_THD,
    **_GRADIENTS,
    stream=None,
)
DENSE_BACKWARD_1_26 = insert_before(DENSE_BACKWARD_1_24, "d_index_q", q_causal_offsets=None)
DENSE_BACKWARD_1_27 = build(
    *_DENSE_BACKWARD,
    "grad_loss",
    sm_scale=1.0,
    loss_coeff=1.0,
    block_I=128,
    ratio=1,
    **_THD,
    q_causal_offsets=None,
    **_GRADIENTS,
    stream=None,
)
DENSE_BACKWARD_1_32 = append(DENSE_BACKWARD_1_27, workspace=None)

DENSE_ATTENTION_1_24 = build(
    "q",
    "k",
    "lse",
    "softmax_scale",
    qhead_per_kv_head=None,
    out=None,
    denom_out=None,
    ratio=1,
    **_THD,
    stream=None,
)
DENSE_ATTENTION_1_26 = insert_before(DENSE_ATTENTION_1_24, "stream", q_causal_offsets=None)
DENSE_ATTENTION_1_27 = insert_before(DENSE_ATTENTION_1_26, "stream", **_BLOCK_SCALED)
DENSE_INDEXER_1_24 = build(
    "q",
    "k",
    "weights",
    qhead_per_kv_head=None,
    out=None,
    denom_out=None,
    sm_scale=1.0,
    ratio=1,
    **_THD,
    stream=None,
)
DENSE_INDEXER_1_26 = insert_before(DENSE_INDEXER_1_24, "stream", q_causal_offsets=None)
DENSE_INDEXER_1_27 = insert_before(DENSE_INDEXER_1_26, "stream", **_BLOCK_SCALED)

_SPARSE_OPTIONS: dict[str, Any] = {
    "qhead_per_kv_head": None,
    "topk_length": None,
    "topk_indices_global": False,
    "out": None,
    "stream": None,
}
SPARSE_ATTENTION_1_24 = build(
    "q_attn", "k_attn", "lse", "topk_indices", "softmax_scale", **_SPARSE_OPTIONS
)
SPARSE_INDEXER_1_24 = build("q_indexer", "k_indexer", "weights", "topk_indices", **_SPARSE_OPTIONS)

ATTENTION_BACKWARD_1_24 = build(
    "q",
    "kv",
    "out",
    "dout",
    "lse",
    "attn_sink",
    "topk_idxs",
    softmax_scale=None,
    topk_length=None,
    dq=None,
    dkv=None,
    block_tile=64,
    stream=None,
)
ATTENTION_BACKWARD_1_29 = append(
    insert_before(ATTENTION_BACKWARD_1_24, "stream", deterministic=False), workspace=None
)
ATTENTION_BACKWARD_1_32 = append(ATTENTION_BACKWARD_1_29, q_cluster_mode="off")

LOCAL_TO_GLOBAL_1_24 = build(
    "local_indices", "seqlen_k", cu_seqlens_q=None, cu_seqlens_k=None, stream=None
)
COMPACTIFY_1_24 = build("indices", stream=None)
