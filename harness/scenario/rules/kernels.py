"""Rules over what the kernels of a backend can take at all.

A scenario that does not expect ``pass`` may break them on purpose, to see the build refuse.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.record.verdict import Verdict
from harness.scenario.names import (
    FLASH_MLA_ROPE_DIM,
    FLASH_MLA_VALUE_DIM,
    INDEXER_HEAD_DIM,
    TOP_K_MAX,
)
from harness.scenario.rules.finding import Finding, Rule, warn
from harness.scenario.spec import Scenario


def _tilelang(scenario: Scenario) -> Iterator[Finding]:
    kernels = scenario.kernels
    if kernels.dsa_kernel_backend == "tilelang" and kernels.source == "modelled":
        yield Finding(
            path=("kernels", "source"),
            message="backend tilelang is never modelled, found source modelled; use source: auto "
            "or hardware",
        )


def _cudnn(scenario: Scenario) -> bool:
    return (
        scenario.kernels.dsa_kernel_backend == "cudnn" and scenario.expect.verdict is Verdict.PASS
    )


def _dimensions(scenario: Scenario) -> Iterator[Finding]:
    if not _cudnn(scenario):
        return
    model = scenario.model
    limits = [("dsa_indexer_head_dim", model.dsa_indexer_head_dim, INDEXER_HEAD_DIM)]
    if scenario.level != "scorer":
        limits += [
            ("kv_lora_rank", model.kv_lora_rank, FLASH_MLA_VALUE_DIM),
            ("qk_pos_emb_head_dim", model.qk_pos_emb_head_dim, FLASH_MLA_ROPE_DIM),
        ]
    for key, found, needed in limits:
        if found != needed:
            yield Finding(
                path=("model", key),
                message=f"backend cudnn takes {key} {needed} only, found {found}; any other ends "
                "in a refusal or the fallback: change it, the backend, or expect.verdict",
            )


def _top_k(scenario: Scenario) -> Iterator[Finding]:
    if _cudnn(scenario) and scenario.model.dsa_indexer_topk > TOP_K_MAX:
        yield Finding(
            path=("model", "dsa_indexer_topk"),
            message=f"backend cudnn takes a dsa_indexer_topk of at most {TOP_K_MAX}, found "
            f"{scenario.model.dsa_indexer_topk}; lower it, or change expect.verdict",
        )


def _relu(scenario: Scenario) -> Iterator[Finding]:
    if _cudnn(scenario) and not scenario.model.dsa_indexer_scoring_relu:
        yield Finding(
            path=("model", "dsa_indexer_scoring_relu"),
            message="backend cudnn scores with relu only, found false; set it true, or change "
            "expect.verdict",
        )


def _rope(scenario: Scenario) -> Iterator[Finding]:
    model = scenario.model
    if model.dsa_indexer_head_dim < model.qk_pos_emb_head_dim:
        yield Finding(
            path=("model", "dsa_indexer_head_dim"),
            message=f"dsa_indexer_head_dim {model.dsa_indexer_head_dim} is below "
            f"qk_pos_emb_head_dim {model.qk_pos_emb_head_dim}, which is part of it; raise it",
        )


def _score_chunks(scenario: Scenario) -> Iterator[Finding]:
    kernels = scenario.kernels
    if kernels.score_chunk_bytes is not None and kernels.dsa_kernel_backend != "cudnn":
        yield warn(
            ("kernels", "score_chunk_bytes"),
            f"score_chunk_bytes is ignored: backend {kernels.dsa_kernel_backend} has no score "
            "chunks; remove it or use backend cudnn",
        )


RULES = (
    Rule(needs=("kernels.dsa_kernel_backend", "kernels.source"), check=_tilelang),
    Rule(
        needs=("kernels.dsa_kernel_backend", "model", "level", "expect.verdict"), check=_dimensions
    ),
    Rule(
        needs=("kernels.dsa_kernel_backend", "model.dsa_indexer_topk", "expect.verdict"),
        check=_top_k,
    ),
    Rule(
        needs=("kernels.dsa_kernel_backend", "model.dsa_indexer_scoring_relu", "expect.verdict"),
        check=_relu,
    ),
    Rule(needs=("model.dsa_indexer_head_dim", "model.qk_pos_emb_head_dim"), check=_rope),
    Rule(needs=("kernels.dsa_kernel_backend", "kernels.score_chunk_bytes"), check=_score_chunks),
)
