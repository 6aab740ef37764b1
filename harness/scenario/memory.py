"""Estimate of the memory that one rank needs for one microbatch, from shapes alone.

A lower bound to plan with, not a measurement: one layer, forward only, parameters and the
allocator's slack left out. With R local rows, N gathered keys, H and D indexer heads and head
dimension, A attention heads of this tensor-parallel rank, L = ``kv_lora_rank`` +
``qk_pos_emb_head_dim``, K = min(top-k, N) and e bytes per element:

==============  =========================================================================
part            bytes
==============  =========================================================================
indexer_inputs  e R H D (queries) + e R H (weights) + e N D (gathered keys)
scores          4 c N for c rows at a time: all R, or as many as the score budget holds; the
                unfused scorer keeps the scores of all heads, twice: 8 R H N
top_k_scratch   8 c N, at most 2 GiB (the fused top-k is called in row chunks)
picks           12 R K (int32 ids, fp32 values, compacted int32 ids); unfused 12 R K (int64, fp32)
attention       e R A L (queries) + e N L (gathered latents) + e R A kv_lora_rank (output); not at
                level scorer; the unfused attention also keeps masked scores, 4 R A N
reference       12 r N: the products of one head in fp32 and a sum in fp64, for r rows at a time
==============  =========================================================================

Budgets are those of megatron-core 0.19.2 (``_INDEXER_SCORE_CHUNK_MAX_BYTES`` 1 GiB,
``_TOPK_WRAPPER_MAX_SCRATCH_BYTES`` 2 GiB in ``dsa_cudnn_kernels.py``).
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.scenario.spec import Scenario

SCORE_BUDGET_BYTES = 1 << 30
TOP_K_SCRATCH_BYTES = 2 << 30
REFERENCE_ROWS = 256
"""Rows that the reference scores at a time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryEstimate:
    """Bytes of one rank, by part."""

    indexer_inputs: int
    scores: int
    top_k_scratch: int
    picks: int
    attention: int
    reference: int

    @property
    def peak(self) -> int:
        """Greatest sum of parts that are alive together: the reference runs after the rest."""
        kept = self.indexer_inputs + self.picks
        return kept + max(self.scores + self.top_k_scratch, self.attention, self.reference)


def estimate(scenario: Scenario, *, rows: int, keys: int, batch: int = 1) -> MemoryEstimate:
    """Estimate the memory of one rank.

    Args:
        scenario: Geometry, backend, level and dtype.
        rows: Local query rows, for each entry of the batch.
        keys: Gathered key rows, for each entry of the batch.
        batch: Micro-batch size (1 for a pack).
    """
    model, fused = scenario.model, scenario.kernels.dsa_kernel_backend != "none"
    element = 2 if scenario.values.dtype == "bf16" else 4
    heads, head_dim = model.dsa_indexer_n_heads, model.dsa_indexer_head_dim
    rows, keys = rows * batch, keys
    chunk = _chunk_rows(scenario, rows, keys) if fused else rows
    return MemoryEstimate(
        indexer_inputs=element * (rows * heads * (head_dim + 1) + batch * keys * head_dim),
        scores=4 * chunk * keys if fused else 8 * rows * heads * keys,
        top_k_scratch=min(8 * chunk * keys, TOP_K_SCRATCH_BYTES) if fused else 0,
        picks=12 * rows * min(model.dsa_indexer_topk, keys),
        attention=_attention(scenario, rows, keys, batch, element, fused=fused),
        reference=12 * _judged_rows(scenario, rows) * keys,
    )


def _chunk_rows(scenario: Scenario, rows: int, keys: int) -> int:
    budget = scenario.kernels.score_chunk_bytes or SCORE_BUDGET_BYTES
    return min(rows, max(1, budget // max(1, 4 * keys)))


def _judged_rows(scenario: Scenario, rows: int) -> int:
    asked = scenario.reference.rows
    return min(REFERENCE_ROWS, rows if asked == "all" else min(asked, rows))


def _attention(
    scenario: Scenario, rows: int, keys: int, batch: int, element: int, *, fused: bool
) -> int:
    if scenario.level == "scorer":
        return 0
    model = scenario.model
    heads = model.num_attention_heads // scenario.parallel.tensor_model_parallel_size
    latent = model.kv_lora_rank + model.qk_pos_emb_head_dim
    inputs = rows * heads * (latent + model.kv_lora_rank) + batch * keys * latent
    return element * inputs + (0 if fused else 4 * rows * heads * keys)
