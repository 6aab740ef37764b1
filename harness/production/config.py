"""Megatron's transformer configuration for a scenario."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import torch
from megatron.core.transformer.transformer_config import MLATransformerConfig

from harness.production.dynamic_cp import dynamic_fields, set_dynamic
from harness.scenario.spec import Scenario, TrainingSpec

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
            **_recompute_fields(scenario.training),
            **_dynamic_fields(scenario),
            dsa_kernel_backend="none" if modelled else backend,
        )
    if modelled:
        config.dsa_kernel_backend = backend
    if _by_build(scenario) and hasattr(config, "dynamic_context_parallel"):
        set_dynamic(config)
    return config


def _by_build(scenario: Scenario) -> bool:
    """Whether Dynamic CP is the build's own matter: level ``attention`` is its caller."""
    return scenario.level == "model" and scenario.parallel.dynamic_context_parallel


def _dynamic_fields(scenario: Scenario) -> dict[str, Any]:
    known = {field.name for field in dataclasses.fields(MLATransformerConfig)}
    found = dynamic_fields() if _by_build(scenario) else {}
    return found if known.issuperset(found) else {}


def _only_hybrid(known: set[str]) -> bool:
    """Whether a configuration has Dynamic CP under its earlier name alone."""
    return "hybrid_context_parallel" in known and "dynamic_context_parallel" not in known


def _graph_fields(scenario: Scenario) -> dict[str, Any]:
    graph = scenario.graph
    if graph.cuda_graph_impl == "none":
        return {}
    per_layer = graph.cuda_graph_impl != "full_iteration"
    known = {field.name for field in dataclasses.fields(MLATransformerConfig)}
    # What is said about Dynamic CP under graphs is said of the configuration alone.
    older = scenario.parallel.dynamic_context_parallel and _only_hybrid(known)
    return {
        **({"hybrid_context_parallel": True} if older else {}),
        "cuda_graph_impl": graph.cuda_graph_impl,
        "cuda_graph_modules": list(graph.cuda_graph_modules) if per_layer else [],
    }


def _recompute_fields(training: TrainingSpec) -> dict[str, Any]:
    if training.recompute == "selective":
        return {
            "recompute_granularity": "selective",
            "recompute_modules": list(training.recompute_modules),
        }
    if training.recompute == "full":
        return {
            "recompute_granularity": "full",
            "recompute_method": training.recompute_method,
            "recompute_num_layers": training.recompute_num_layers,
        }
    return {}


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
