"""The plan that a released megatron-core takes, from the same layout facts.

Read from megatron-core 0.19.2 (``DSAttention.forward``, ``dsa_kernels.py`` and
``dsa_cudnn_kernels.py``), for the ``cudnn`` backend with a model geometry that its fused path
accepts. The release has no plan object; these are the branches it ends in.
"""

from __future__ import annotations

from harness.layout.pack import Pack
from harness.layout.plan import (
    KeyPositions,
    LossMode,
    Plan,
    PlanDecision,
    QkvFormat,
    check_plan_facts,
)


def released_plan_0192(
    *,
    qkv_format: QkvFormat,
    cp_size: int,
    pack: Pack | None = None,
    key_positions: KeyPositions = "derived",
    loss: LossMode = "off",
    split_hooks: bool = False,
) -> PlanDecision:
    """Return the plan megatron-core 0.19.2 takes, which need not be the right one.

    It names the branch that is entered, whether or not that branch then works: a pack whose
    sequences are all empty, and several sequences with a tail, raise inside the scorer.

    Args:
        qkv_format: ``thd`` (packed, ``pack`` required) or ``sbhd``.
        cp_size: Effective CP size.
        pack: The packed layout; not looked at for ``sbhd``.
        key_positions: ``explicit`` when the caller hands over key positions of its own.
        loss: Indexer loss of this call.
        split_hooks: True where ``run_fused_qk_topk`` or ``run_fused_qk_topk_with_loss`` scores,
            because top-k is shared between layers or because the caller drives the hooks itself;
            False where ``run_fused_dsa_attention`` does.

    Raises:
        LayoutError: ``cp_size`` below 1 or not the pack's, or ``thd`` without a pack.
    """
    check_plan_facts(qkv_format, cp_size, pack, key_positions, loss)
    if key_positions == "explicit":
        return PlanDecision(
            Plan.DECLINE, "explicit key positions: no bounds are built and both hooks return None"
        )
    if qkv_format == "sbhd":
        return _released_sbhd(cp_size, loss, split_hooks)
    if loss == "dense":
        return PlanDecision(
            Plan.DECLINE,
            "dense indexer loss with row bounds: run_fused_dsa_attention returns None and the "
            "reference loss path scores",
        )
    if cp_size == 1:
        return PlanDecision(
            Plan.UNFUSED_BOUNDS,
            "packed at cp_size 1: the packed kernels are only taken for cp_size above 1",
        )
    assert pack is not None
    if pack.single:
        return PlanDecision(
            Plan.PACKED_SINGLE,
            f"cp_size {cp_size} and one entry in cu_seqlens of queries and keys; tail rows and "
            "different boundaries are not looked at",
        )
    return PlanDecision(
        Plan.PACKED_THD, f"cp_size {cp_size} and {pack.num_sequences} entries in cu_seqlens"
    )


def _released_sbhd(cp_size: int, loss: LossMode, split_hooks: bool) -> PlanDecision:
    if loss == "dense" and (cp_size > 1 or split_hooks):
        return PlanDecision(
            Plan.DECLINE,
            "dense indexer loss outside plain causal run_fused_dsa_attention: the reference loss "
            "path scores",
        )
    if cp_size > 1:
        return PlanDecision(
            Plan.UNFUSED_BOUNDS,
            f"not packed, cp_size {cp_size}: no packed metadata, scored with row bounds",
        )
    if split_hooks:
        return PlanDecision(
            Plan.UNFUSED_BOUNDS,
            "the split hooks always pass row bounds, so plain causal is not recognised",
        )
    return PlanDecision(
        Plan.PLAIN_CAUSAL, "not packed, cp_size 1: the plain causal bounds are dropped"
    )
