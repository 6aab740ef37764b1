import dataclasses

import pytest

from harness.scenario.memory import SCORE_BUDGET_BYTES, estimate
from harness.scenario.spec import (
    KernelsSpec,
    MicrobatchSpec,
    ModelSpec,
    ParallelSpec,
    ReferenceSpec,
    Scenario,
    TrainingSpec,
    ValuesSpec,
)
from harness.scenario.verify import verify

MODEL = ModelSpec(
    name="m",
    num_attention_heads=4,
    kv_lora_rank=16,
    qk_pos_emb_head_dim=8,
    dsa_indexer_n_heads=2,
    dsa_indexer_head_dim=32,
    dsa_indexer_topk=8,
)
BASE = Scenario(
    id="x",
    summary="",
    model=MODEL,
    parallel=ParallelSpec(context_parallel_size=4),
    microbatches=(MicrobatchSpec(sequences=(128, 60, 64)),),
)
CUDNN = KernelsSpec(dsa_kernel_backend="cudnn")


def test_layout_and_plan_of_each_rank():
    found = verify(BASE)
    assert (found.num_ranks, found.context_parallel_size) == (4, 4)
    (plan,) = found.microbatches
    assert plan.plan == plan.released == "packed_thd"
    assert plan.keys == 256
    assert [rank.cp_rank for rank in plan.ranks] == [0, 1, 2, 3]
    assert [rank.rows for rank in plan.ranks] == [64] * 4
    # Padding of the second sequence stands in its last chunk: rank 0's back half.
    assert [rank.valid_rows for rank in plan.ranks] == [60, 64, 64, 64]
    assert [rank.largest_limit for rank in plan.ranks] == [128, 112, 96, 80]


def test_effective_cp_and_chosen_ranks():
    dynamic = dataclasses.replace(
        BASE,
        parallel=ParallelSpec(context_parallel_size=4, dynamic_context_parallel=True),
        microbatches=(MicrobatchSpec(sequences=(64,)), MicrobatchSpec(sequences=(64,), cp=2)),
    )
    assert [len(plan.ranks) for plan in verify(dynamic).microbatches] == [4, 2]
    chosen = dataclasses.replace(
        BASE,
        level="scorer",
        parallel=ParallelSpec(context_parallel_size=4, cp_ranks=(0, 3)),
    )
    found = verify(chosen)
    assert [rank.cp_rank for rank in found.microbatches[0].ranks] == [0, 3]
    assert found.num_ranks == 1


def test_the_released_plan_is_shown_where_it_differs():
    packed_at_one = dataclasses.replace(BASE, parallel=ParallelSpec())
    (plan,) = verify(packed_at_one).microbatches
    assert (plan.plan, plan.released) == ("packed_thd", "unfused_bounds")


@pytest.mark.parametrize(
    ("training", "plan"),
    [
        (TrainingSpec(), "packed_thd"),
        (TrainingSpec(dsa_indexer_loss_coeff=1.0, dsa_indexer_use_sparse_loss=True), "packed_thd"),
        (TrainingSpec(dsa_indexer_loss_coeff=1.0), "unfused_bounds"),
    ],
)
def test_the_loss_decides_the_plan(training, plan):
    found = verify(dataclasses.replace(BASE, training=training))
    assert found.microbatches[0].plan == plan


def test_notes_say_when_nothing_is_ranked():
    assert verify(BASE).notes == ()
    wide = dataclasses.replace(BASE, model=dataclasses.replace(MODEL, dsa_indexer_topk=128))
    (note,) = verify(wide).notes
    assert "dsa_indexer_topk 128 reaches the longest sequence (128 keys)" in note
    heads = dataclasses.replace(
        BASE, kernels=CUDNN, model=dataclasses.replace(MODEL, dsa_indexer_n_heads=16)
    )
    assert any("dsa_indexer_n_heads 16" in note for note in verify(heads).notes)


def test_memory_follows_the_documented_formula():
    scenario = dataclasses.replace(BASE, kernels=CUDNN)
    found = estimate(scenario, rows=64, keys=256)
    assert found.indexer_inputs == 2 * (64 * 2 * 32 + 64 * 2 + 256 * 32)
    assert found.scores == 4 * 64 * 256
    assert found.top_k_scratch == 8 * 64 * 256
    assert found.picks == 12 * 64 * 8
    assert found.attention == 2 * (64 * 4 * 24 + 256 * 24 + 64 * 4 * 16)
    assert found.reference == 12 * 64 * 256
    assert found.peak == found.indexer_inputs + found.picks + max(
        found.scores + found.top_k_scratch, found.attention, found.reference
    )


def test_memory_of_the_unfused_scorer_holds_all_heads():
    fused = estimate(dataclasses.replace(BASE, kernels=CUDNN), rows=64, keys=256)
    unfused = estimate(BASE, rows=64, keys=256)
    assert unfused.scores == 8 * 64 * 2 * 256
    assert unfused.top_k_scratch == 0
    assert unfused.attention == fused.attention + 4 * 64 * 4 * 256


def test_memory_bounds_and_levels():
    long = estimate(dataclasses.replace(BASE, kernels=CUDNN), rows=1 << 17, keys=1 << 17)
    assert long.scores == SCORE_BUDGET_BYTES
    chunked = dataclasses.replace(CUDNN, score_chunk_bytes=4096)
    small = estimate(dataclasses.replace(BASE, kernels=chunked), rows=64, keys=256)
    assert small.scores == 4096
    scorer = dataclasses.replace(BASE, level="scorer", values=ValuesSpec(dtype="fp32"))
    found = estimate(scorer, rows=64, keys=256)
    assert found.attention == 0
    assert found.indexer_inputs == 2 * estimate(BASE, rows=64, keys=256).indexer_inputs
    sampled = dataclasses.replace(BASE, reference=ReferenceSpec(rows=10))
    assert estimate(sampled, rows=64, keys=256).reference == 12 * 10 * 256
    halved = dataclasses.replace(BASE, parallel=ParallelSpec(tensor_model_parallel_size=2))
    assert (
        estimate(halved, rows=64, keys=256).attention < estimate(BASE, rows=64, keys=256).attention
    )


def test_an_sbhd_batch_counts_each_entry():
    batch = MicrobatchSpec(sequences=(64, 64), qkv_format="sbhd")
    one = dataclasses.replace(batch, sequences=(64,))
    sizes = [
        verify(dataclasses.replace(BASE, microbatches=(mb,))).microbatches[0].memory
        for mb in (one, batch)
    ]
    assert sizes[1].indexer_inputs == 2 * sizes[0].indexer_inputs
