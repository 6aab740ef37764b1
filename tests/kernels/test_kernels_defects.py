"""Every switchable defect: a planted trigger, and the healthy twin beside it."""

import pytest
import torch
from kernel_inputs import FORWARD_PAIRS, bshd, int32, picked_sets, prefix, thd

from harness.kernels import RELEASES, AddressFault, modelled_namespace
from harness.kernels.topk_call import spilled_candidates
from harness.kernels.topk_plan import topk_plan

INF = float("inf")


def having(defect):
    return [(v, a) for v, a in FORWARD_PAIRS if defect in RELEASES[v].defects[a]]


def lacking(defect):
    return [(v, a) for v, a in FORWARD_PAIRS if defect not in RELEASES[v].defects[a]]


def roomy(rows, cols, spare, value):
    """Scores at the start of a larger allocation, as a caching allocator hands them out."""
    storage = torch.full((rows * cols + spare,), 7.0)
    scores = storage[: rows * cols].view(rows, cols)
    scores.fill_(value)
    return scores


# d446: phantom lanes


@pytest.mark.parametrize(("version", "arch"), having("d446"))
def test_phantom_lanes_reach_past_the_length(version, arch):
    namespace = modelled_namespace(version, arch)
    scores = roomy(200, 4200, 4096, -1e5)
    result = namespace.indexer_top_k_wrapper(scores, torch.full((200,), 4200).int(), 2048)
    indices = result["indices"]
    assert indices.max() >= 4200
    assert indices.max() <= 8191
    classes = {finding.klass for finding in namespace.findings}
    assert "wrong_row" in classes
    assert {finding.operand for finding in namespace.findings} == {"input_values", "scratch"}


@pytest.mark.parametrize(("version", "arch"), having("d446"))
def test_phantom_lanes_fault_behind_the_last_row(version, arch):
    namespace = modelled_namespace(version, arch)
    scores = torch.full((200, 4200), -1e5)
    with pytest.raises(AddressFault) as caught:
        namespace.indexer_top_k_wrapper(scores, torch.full((200,), 4200).int(), 2048)
    evidence = caught.value.evidence
    assert (evidence.kernel, evidence.operand) == ("indexer_top_k_wrapper", "input_values")
    assert evidence.klass == "past_allocation"
    assert evidence.element_offset == evidence.row * 4200 + evidence.index >= 200 * 4200


@pytest.mark.parametrize(
    ("version", "arch", "defects"),
    [(v, a, "as_released") for v, a in lacking("d446")] + [("1.26.0", "sm100", "none")],
)
def test_without_d446_no_pick_passes_the_length(version, arch, defects):
    namespace = modelled_namespace(version, arch, defects=defects)
    scores = torch.full((200, 4200), -1e5)
    indices = namespace.indexer_top_k_wrapper(scores, torch.full((200,), 4200).int(), 2048)[
        "indices"
    ]
    assert indices.max() <= 4199
    assert all(len(picks) == 2048 for picks in picked_sets(indices))
    assert namespace.findings == []


def test_chunk_local_window_rows_hit_d446_in_small_calls():
    scores = torch.full((64, 130), -INF)
    scores.masked_fill_(torch.arange(130) <= torch.arange(64).unsqueeze(1), 1.0)
    namespace = modelled_namespace("1.26.0")
    picks = namespace.indexer_top_k_wrapper(scores, torch.arange(67, 131).int(), 16)["indices"]
    assert (picks[:14] >= 130).any()
    assert (picks[20:] < 130).all(), "rows with top_k finite scores are untouched"
    assert (picks[20:] <= torch.arange(20, 64).unsqueeze(1)).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_phantom_lanes_of_half_types(dtype):
    scores = roomy(4, 100, 8192, -INF).to(dtype)
    spare = torch.zeros(8192, dtype=dtype)
    scores = torch.cat([scores.flatten(), spare])[:400].view(4, 100)
    picks = modelled_namespace("1.26.0").indexer_top_k_wrapper(scores, int32(90, 90, 90, 90), 16)
    assert (picks["indices"] >= 100).any()
    clean = modelled_namespace("1.27.0").indexer_top_k_wrapper(scores, int32(90, 90, 90, 90), 16)
    assert (clean["indices"] < 90).all()


def test_enough_scores_above_the_bucket_keep_d446_quiet():
    scores = torch.full((4, 4200), -INF)
    scores[:, :2048] = -65519.0
    namespace = modelled_namespace("1.26.0")
    indices = namespace.indexer_top_k_wrapper(scores, int32(4200, 4200, 4200, 4200), 2048)[
        "indices"
    ]
    assert picked_sets(indices) == [set(range(2048))] * 4
    scores[:, 2047] = -65520.0
    with pytest.raises(AddressFault):
        namespace.indexer_top_k_wrapper(scores, int32(4200, 4200, 4200, 4200), 2048)


# d406: odd top_k


@pytest.mark.parametrize(("version", "arch"), having("d406"))
def test_odd_top_k_fails_at_compile(version, arch):
    namespace = modelled_namespace(version, arch)
    with pytest.raises(AssertionError, match="odd"):
        namespace.indexer_top_k_wrapper(torch.randn(200, 1000), torch.full((200,), 900).int(), 705)


@pytest.mark.parametrize(
    ("version", "arch", "defects"),
    [(v, a, "as_released") for v, a in lacking("d406")] + [("1.26.0", "sm90", ("d446",))],
)
def test_odd_top_k_works_without_d406(version, arch, defects):
    namespace = modelled_namespace(version, arch, defects=defects)
    result = namespace.indexer_top_k_wrapper(
        torch.randn(200, 1000), torch.full((200,), 900).int(), 705
    )
    assert all(len(picks) == 705 for picks in picked_sets(result["indices"]))


# d311: needs rows that spill; the public sizes are in test_kernels_topk_plan


def test_spilled_candidates_are_those_beyond_shared_memory():
    plan = topk_plan(n_rows=4096, num_cols=9000, top_k=100, chunked=False)
    scores = torch.full((9000,), 1.0)
    assert spilled_candidates(plan, scores, 9000) == 9000 - 1024
    assert spilled_candidates(plan, scores, 100) == 0, "no ranking, no scratch"
    scores[:100] = 50.0
    assert spilled_candidates(plan, scores, 9000) == 0, "the cut is clean"
    few = topk_plan(n_rows=4, num_cols=9000, top_k=100)
    assert spilled_candidates(few, torch.ones(9000), 9000) == 0, "this build keeps all in shared"


@pytest.mark.parametrize(("defects", "faults"), [("as_released", True), ("none", False)])
def test_d311_reaches_the_wrapper(monkeypatch, defects, faults):
    # The 32-bit range cannot be filled here, so a narrower one stands in for it.
    monkeypatch.setattr("harness.kernels.topk_plan.INT32_MAX", 2**21 - 1)
    monkeypatch.setattr(
        "harness.kernels.addresses.wrap_int32", lambda value: (value + 2**21) % 2**22 - 2**21
    )
    namespace = modelled_namespace("1.24.0", defects=defects)
    scores, seq_lens = torch.ones(300, 5000), torch.full((300,), 5000).int()
    if faults:
        with pytest.raises(AddressFault) as caught:
            namespace.indexer_top_k_wrapper(scores, seq_lens, 100)
        assert caught.value.evidence.klass == "int32_overflow"
        assert caught.value.evidence.row == 210
        assert caught.value.evidence.element_offset < 0
    else:
        indices = namespace.indexer_top_k_wrapper(scores, seq_lens, 100)["indices"]
        assert all(len(picks) == 100 for picks in picked_sets(indices))


# short_rows (T1)


@pytest.mark.parametrize(("version", "arch"), having("short_rows"))
def test_short_misaligned_rows_rank_past_their_length(version, arch):
    scores = torch.zeros(2, 9)
    scores[1] = torch.arange(9.0)
    # Row 1 starts at 36 bytes, 7 elements before the next boundary; its length is 3.
    picks = modelled_namespace(version, arch).indexer_top_k_wrapper(scores, int32(3, 3), 2)[
        "indices"
    ]
    assert picked_sets(picks)[1] == {5, 6}


@pytest.mark.parametrize(
    ("version", "arch", "defects"),
    [(v, a, "as_released") for v, a in lacking("short_rows")] + [("1.31.0", "sm100", "none")],
)
def test_short_misaligned_rows_without_the_defect(version, arch, defects):
    scores = torch.zeros(2, 9)
    scores[1] = torch.arange(9.0)
    namespace = modelled_namespace(version, arch, defects=defects)
    picks = namespace.indexer_top_k_wrapper(scores, int32(3, 3), 2)["indices"]
    assert picked_sets(picks)[1] == {1, 2}


# long_lengths


@pytest.mark.parametrize(("version", "arch"), having("long_lengths"))
def test_a_length_above_the_columns_reads_the_next_row(version, arch):
    scores = torch.arange(48.0).view(3, 16)
    namespace = modelled_namespace(version, arch)
    result = namespace.indexer_top_k_wrapper(scores, int32(20, 16, 16), 4)
    assert picked_sets(result["indices"])[0] == {16, 17, 18, 19}
    assert sorted(result["values"][0].tolist()) == [16.0, 17.0, 18.0, 19.0]
    (finding, *_) = namespace.findings
    assert (finding.klass, finding.row, finding.index) == ("wrong_row", 0, 16)
    assert finding.allowed == (0, 16)


def test_a_length_above_the_columns_faults_on_the_last_row():
    scores = torch.arange(48.0).view(3, 16)
    for top_k in (4, 32):  # ranked, and copied without ranking
        with pytest.raises(AddressFault) as caught:
            modelled_namespace().indexer_top_k_wrapper(scores, int32(16, 16, 20), top_k)
        evidence = caught.value.evidence
        assert (evidence.klass, evidence.row, evidence.index) == ("past_allocation", 2, 16)


def test_the_last_row_of_a_slice_reads_its_allocation():
    whole = torch.arange(64.0).view(4, 16)
    namespace = modelled_namespace()
    result = namespace.indexer_top_k_wrapper(whole[:3], int32(16, 16, 20), 4)
    assert picked_sets(result["indices"])[2] == {16, 17, 18, 19}
    assert {finding.klass for finding in namespace.findings} == {"past_tensor"}


def test_lengths_are_clamped_without_the_defect():
    scores = torch.arange(48.0).view(3, 16)
    namespace = modelled_namespace(defects="none")
    picks = namespace.indexer_top_k_wrapper(scores, int32(20, 16, 20), 4)["indices"]
    assert picked_sets(picks) == [{12, 13, 14, 15}] * 3
    assert namespace.findings == []


# mask_leak


@pytest.mark.parametrize(("version", "arch"), having("mask_leak"))
def test_sm90_mask_leaks_past_a_64_boundary(version, arch):
    namespace = modelled_namespace(version, arch)
    q, k, w = bshd(1, 8, 130)
    offset = 130 - 8 if version == "1.25.0" else 61
    if version == "1.25.0":
        k = k[:, :69]  # offset 61 by bottom-right alignment
        scores = namespace.indexer_forward_wrapper(q, k, w, ratio=1)["scores"][0]
    else:
        scores = namespace.indexer_forward_wrapper(q, k, w, ratio=1, q_causal_offsets=int32(offset))
        scores = scores["scores"][0]
    stored = torch.isfinite(scores).sum(1).tolist()
    # Offset 61: limits 62, 63, 64, 65 in the first tile; the block before column 64 is unmasked.
    assert stored[:4] == [64, 64, 64, 65]
    assert stored[4:] == [66, 67, 68, 69]


@pytest.mark.parametrize(
    ("version", "arch", "heads", "defects"),
    [
        ("1.32.0", "sm90", 64, "as_released"),
        ("1.32.0", "sm90", 16, "as_released"),
        ("1.32.0", "sm90", 32, "none"),
        ("1.32.0", "sm100", 32, "as_released"),
    ],
)
def test_mask_does_not_leak_elsewhere(version, arch, heads, defects):
    namespace = modelled_namespace(version, arch, defects=defects)
    tensors = bshd(1, 8, 130, heads)
    result = namespace.indexer_forward_wrapper(*tensors, ratio=1, q_causal_offsets=int32(61))
    assert torch.isfinite(result["scores"][0]).sum(1).tolist() == list(range(62, 70))


def test_default_offset_never_leaks_and_lse_ignores_leaked_cells():
    namespace = modelled_namespace("1.32.0", "sm90")
    square = namespace.indexer_forward_wrapper(*bshd(1, 130, 130), ratio=1)["scores"][0]
    assert torch.isfinite(square).sum(1).tolist() == list(range(1, 131))
    tensors = bshd(1, 4, 130)
    leaky, clean = (
        modelled_namespace("1.32.0", "sm90", defects=defects).indexer_forward_wrapper(
            *tensors, ratio=1, q_causal_offsets=int32(61), return_lse=True
        )
        for defects in ("as_released", "none")
    )
    assert not torch.equal(leaky["scores"], clean["scores"])
    assert torch.equal(leaky["lse"], clean["lse"])


# short_max_k


def thd_call(namespace, max_q=8, max_k=8, lengths=(8, 8), heads=32):
    rows = sum(lengths)
    cu = prefix(list(lengths))
    return namespace.indexer_forward_wrapper(
        *thd(rows, rows, heads),
        ratio=1,
        cu_seqlens_q=cu,
        cu_seqlens_k=cu,
        max_seqlen_q=max_q,
        max_seqlen_k=max_k,
    )["scores"]


@pytest.mark.parametrize(("version", "arch"), having("short_max_k"))
def test_short_max_seqlen_k_runs_on_into_the_next_row(version, arch):
    namespace = modelled_namespace(version, arch)
    scores = thd_call(namespace, max_k=4, lengths=(6, 2))
    whole = thd_call(modelled_namespace(version, arch), max_k=6, lengths=(6, 2))
    # Row 5 sees 6 keys; its columns 4 and 5 land in row 6, of which only column 0 is its own.
    assert scores[6, 1] == whole[5, 5]
    assert scores[6, 0] in (whole[5, 4], whole[6, 0]), "two rows write it: a race"
    assert [(f.operand, f.klass, f.row) for f in namespace.findings] == [
        ("scores", "wrong_row", 4),
        ("scores", "wrong_row", 5),
    ]


def test_short_max_seqlen_k_race_goes_both_ways():
    winners = {
        float(thd_call(modelled_namespace(seed=seed), max_k=4, lengths=(6, 2))[6, 0])
        for seed in range(12)
    }
    assert len(winners) == 2


def test_short_max_seqlen_k_faults_behind_the_last_row():
    with pytest.raises(AddressFault) as caught:
        thd_call(modelled_namespace(), max_k=4, lengths=(2, 6))
    evidence = caught.value.evidence
    assert (evidence.operand, evidence.row, evidence.klass) == ("scores", 7, "past_allocation")
    assert evidence.element_offset == 8 * 4


@pytest.mark.parametrize(
    ("version", "arch", "defects"),
    [("1.32.0", "sm90", "as_released"), ("1.32.0", "sm100", ("short_max_q",))],
)
def test_short_max_seqlen_k_is_guarded_elsewhere(version, arch, defects):
    namespace = modelled_namespace(version, arch, defects=defects)
    scores = thd_call(namespace, max_k=4, lengths=(2, 6))
    assert torch.isfinite(scores).sum(1).tolist() == [1, 2, 1, 2, 3, 4, 4, 4]
    assert namespace.findings == []


# short_max_q


@pytest.mark.parametrize(("version", "arch"), having("short_max_q"))
def test_short_max_seqlen_q_leaves_last_rows_unscored(version, arch):
    tokens = RELEASES[version].forward[arch].tokens_per_tile[32]
    scores = thd_call(modelled_namespace(version, arch), max_q=5, lengths=(12, 4), max_k=12)
    scored = -(-5 // tokens) * tokens
    seen = torch.isfinite(scores).any(1).tolist()
    assert seen == [True] * scored + [False] * (12 - scored) + [True] * 4


@pytest.mark.parametrize("arch", ["sm90", "sm100"])
def test_short_max_seqlen_q_without_the_defect(arch):
    namespace = modelled_namespace("1.32.0", arch, defects="none")
    scores = thd_call(namespace, max_q=5, lengths=(12, 4), max_k=12)
    assert torch.isfinite(scores).any(1).all()
