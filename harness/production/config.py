"""Megatron's transformer configuration for a scenario."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from megatron.core.transformer.transformer_config import MLATransformerConfig

from harness.scenario.spec import Scenario

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def transformer_config(scenario: Scenario, *, modelled: bool, graphs: bool = False) -> Any:
    """Build the ``MLATransformerConfig`` of a scenario.

    Args:
        scenario: The resolved scenario.
        modelled: Whether kernels are modelled. The configuration refuses ``cudnn`` where CUDA or
            FlashMLA is missing, so it is built with ``none`` and the backend is set afterwards;
            the record says so.
        graphs: With the scenario's CUDA-graph mode; forwards are eager, so that levels build
            without, and only graph readiness asks for it.
    """
    backend = scenario.kernels.dsa_kernel_backend
    with warnings.catch_warnings():
        # A deprecation of Megatron's own default; not something a scenario can change.
        warnings.filterwarnings("ignore", message="full scope is deprecated")
        config = MLATransformerConfig(
            **_fields(scenario),
            **(_graph_fields(scenario) if graphs else {}),
            dsa_kernel_backend="none" if modelled else backend,
        )
    if modelled:
        config.dsa_kernel_backend = backend
    return config


def _graph_fields(scenario: Scenario) -> dict[str, Any]:
    graph = scenario.graph
    if graph.cuda_graph_impl == "none":
        return {}
    per_layer = graph.cuda_graph_impl != "full_iteration"
    return {
        "cuda_graph_impl": graph.cuda_graph_impl,
        "cuda_graph_modules": list(graph.cuda_graph_modules) if per_layer else [],
    }


def _fields(scenario: Scenario) -> dict[str, Any]:
    model, parallel, training = scenario.model, scenario.parallel, scenario.training
    dtype = DTYPES[scenario.values.dtype]
    return {
        "num_layers": model.num_layers if scenario.level == "model" else 1,
        "hidden_size": model.hidden_size,
        "ffn_hidden_size": model.ffn_hidden_size,
        "num_attention_heads": model.num_attention_heads,
        "q_lora_rank": model.q_lora_rank,
        "kv_lora_rank": model.kv_lora_rank,
        "qk_head_dim": model.qk_head_dim,
        "qk_pos_emb_head_dim": model.qk_pos_emb_head_dim,
        "v_head_dim": model.v_head_dim,
        "rope_type": "rope",
        "rotary_base": model.rotary_base,
        "normalization": "RMSNorm",
        "qk_layernorm": True,
        "layernorm_epsilon": model.layernorm_epsilon,
        "add_bias_linear": False,
        "attention_dropout": 0.0,
        "hidden_dropout": 0.0,
        "experimental_attention_variant": "dsa",
        "dsa_indexer_n_heads": model.dsa_indexer_n_heads,
        "dsa_indexer_head_dim": model.dsa_indexer_head_dim,
        "dsa_indexer_topk": model.dsa_indexer_topk,
        "dsa_indexer_topk_freq": model.dsa_indexer_topk_freq,
        "dsa_indexer_skip_topk_offset": model.dsa_indexer_skip_topk_offset,
        "dsa_indexer_rope_interleaved": model.dsa_indexer_rope_interleaved,
        "dsa_indexer_rotate_activation": model.dsa_indexer_rotate_activation,
        "dsa_indexer_scoring_relu": model.dsa_indexer_scoring_relu,
        "dsa_indexer_loss_coeff": training.dsa_indexer_loss_coeff,
        "dsa_indexer_use_sparse_loss": training.dsa_indexer_use_sparse_loss,
        "calculate_per_token_loss": training.calculate_per_token_loss,
        "context_parallel_size": parallel.context_parallel_size,
        "cp_comm_type": parallel.cp_comm_type,
        "tensor_model_parallel_size": parallel.tensor_model_parallel_size,
        "sequence_parallel": parallel.sequence_parallel,
        "use_cpu_initialization": not torch.cuda.is_available(),
        "params_dtype": dtype,
        "bf16": dtype is torch.bfloat16,
    }
