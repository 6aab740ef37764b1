"""Parameter lists of the wrappers, per release, as real ``inspect.Signature`` objects.

They are data: binding a call against them raises the ``TypeError`` that the release's own function
would raise, and ``inspect.signature`` of a modelled wrapper answers as that of the real one.
"""

from __future__ import annotations

import inspect
from typing import Any

Signature = inspect.Signature
_POSITIONAL = inspect.Parameter.POSITIONAL_OR_KEYWORD


def build(*required: str, **defaults: Any) -> Signature:
    """Build a signature of positional-or-keyword parameters, in the order given."""
    parameters = [inspect.Parameter(name, _POSITIONAL) for name in required]
    parameters += _with_defaults(defaults)
    return Signature(parameters)


def _with_defaults(defaults: dict[str, Any]) -> list[inspect.Parameter]:
    return [inspect.Parameter(name, _POSITIONAL, default=value) for name, value in defaults.items()]


def append(signature: Signature, **defaults: Any) -> Signature:
    """Return ``signature`` with parameters added at the end."""
    return Signature([*signature.parameters.values(), *_with_defaults(defaults)])


def insert_before(signature: Signature, name: str, **defaults: Any) -> Signature:
    """Return ``signature`` with parameters inserted in front of ``name``."""
    parameters = list(signature.parameters.values())
    at = list(signature.parameters).index(name)
    return Signature([*parameters[:at], *_with_defaults(defaults), *parameters[at:]])


FORWARD_1_24 = build(
    "q",
    "k",
    "w",
    ratio=4,
    qhead_per_kv_head=None,
    m_block_size=128,
    n_block_size=128,
    q_stage=2,
    kv_stage=4,
    sm_scale=1.0,
    stream=None,
    cu_seqlens_q=None,
    cu_seqlens_k=None,
    max_seqlen_q=None,
    max_seqlen_k=None,
)
FORWARD_1_26 = append(FORWARD_1_24, q_causal_offsets=None)
FORWARD_1_27 = append(
    insert_before(FORWARD_1_26, "stream", out=None),
    precision="bf16",
    q_scale=None,
    k_scale=None,
    cu_seqlens_q_scale_padded=None,
    cu_seqlens_k_scale_padded=None,
    sf_vec_size=32,
    return_lse=False,
    lse_out=None,
)

TOP_K_1_24 = build(
    "input_values",
    "seq_lens",
    "top_k",
    next_n=1,
    return_val=True,
    num_copy_bits=256,
    stream=None,
)
TOP_K_1_31 = append(TOP_K_1_24, tie_break=0)
TOP_K_1_32 = append(TOP_K_1_31, deterministic=False)

FORWARD_TOP_K_1_27 = build(
    "q",
    "k",
    "w",
    "top_k",
    ratio=4,
    qhead_per_kv_head=None,
    m_block_size=128,
    n_block_size=128,
    q_stage=2,
    kv_stage=4,
    sm_scale=1.0,
    stream=None,
    cu_seqlens_q=None,
    cu_seqlens_k=None,
    max_seqlen_q=None,
    max_seqlen_k=None,
    q_causal_offsets=None,
    precision="bf16",
    q_scale=None,
    k_scale=None,
    cu_seqlens_q_scale_padded=None,
    cu_seqlens_k_scale_padded=None,
    sf_vec_size=32,
    return_lse=False,
    lse_out=None,
    return_softmax=None,
    softmax_out=None,
    microbatch_rows=-1,
    topk_indices_global=True,
    cand_buffer=None,
    out_indices=None,
    out_logits=None,
    cand_batch_offsets=None,
    deterministic=False,
)

CANDIDATE_SIZE_1_27 = build(
    "bs",
    "seqlen_q",
    "seqlen_k",
    "ratio",
    microbatch_rows=-1,
    return_lse=False,
    q_causal_offsets=None,
    precision="bf16",
)
CANDIDATE_SIZE_THD_1_27 = build("cu_seqlens_q", "cu_seqlens_k", "ratio", q_causal_offsets=None)
