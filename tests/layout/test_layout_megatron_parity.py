"""Positions, reorder, bounds and released plan against megatron-core's own functions."""

import random
import warnings
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness.layout import (
    Pack,
    Plan,
    expand_key_starts,
    expand_limits,
    expand_runs,
    inverse_permutation,
    megatron_position_runs,
    pack_sequences,
    rank_segments,
    released_plan_0192,
    row_limits,
    sbhd_pack,
    zigzag_runs,
)

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def megatron() -> SimpleNamespace:
    """The layout, masking and cuDNN kernel modules of the installed build."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # notes on missing optional packages
        from megatron.core.packed_seq_params import PackedSeqParams
        from megatron.core.transformer.enums import AttnMaskType
        from megatron.core.transformer.experimental_attention_variant import (
            dsa_cudnn_kernels,
            dsa_layout,
            dsa_masking,
        )
    return SimpleNamespace(
        layout=dsa_layout,
        masking=dsa_masking,
        kernels=dsa_cudnn_kernels,
        packed_seq_params=PackedSeqParams,
        causal=AttnMaskType.causal,
    )


def layouts() -> list[Pack]:
    """Chosen corners and 80 seeded random packs, not all of their sequences empty."""
    packs = [
        pack_sequences([4, 4], cp_size=2),
        pack_sequences([698], cp_size=4),
        pack_sequences([0, 3, 0, 9, 0], cp_size=4, tail_padding=8),
        pack_sequences([8, 4], cp_size=2, kv_sequences=[4, 8]),
        pack_sequences([8, 8], cp_size=2, kv_sequences=[8, 4]),
        pack_sequences([4], cp_size=2, kv_sequences=[16], tail_padding=4),
        pack_sequences([8192, 4096], cp_size=32),
        pack_sequences([131008, 64], cp_size=32, tail_padding=64),
    ]
    draw = random.Random(6206)
    for _ in range(80):
        cp_size = draw.choice([1, 2, 3, 4, 8])
        lengths = [draw.choice([0, draw.randint(1, 50)]) for _ in range(draw.randint(1, 6))]
        lengths[draw.randrange(len(lengths))] = draw.randint(1, 50)
        kv = None
        if draw.random() < 0.4:
            kv = [draw.randint(1, 50) for _ in lengths]
        tail = cp_size * draw.choice([0, 0, 1, 5])
        packs.append(pack_sequences(lengths, cp_size=cp_size, kv_sequences=kv, tail_padding=tail))
    return packs


def as_tensor(values: object) -> torch.Tensor:
    return torch.tensor(list(values), dtype=torch.int64)  # type: ignore[call-overload]


def test_positions_and_reorder_are_megatrons_bit_for_bit(megatron: SimpleNamespace) -> None:
    for pack in layouts():
        ranks = range(pack.cp_size) if pack.cp_size < 32 else (0, 15, 31)
        reorder = as_tensor(inverse_permutation(pack))
        covers = pack.query_cu_seqlens_cover_output, pack.key_cu_seqlens_cover_output
        for cover_q, cover_k in {(False, False), pack.host_cover_flags, covers}:
            for rank in ranks:
                positions, index = (
                    megatron.layout.build_packed_allgather_cp_query_positions_and_key_reorder(
                        as_tensor(pack.cu_seqlens_q_padded),
                        as_tensor(pack.cu_seqlens_k_padded),
                        pack.cp_size,
                        rank,
                        CPU,
                        local_output_size=pack.rows_per_rank,
                        key_local_output_size=pack.key_rows_per_rank,
                        global_output_size=pack.total_k,
                        query_cu_seqlens_cover_output=cover_q,
                        key_cu_seqlens_cover_output=cover_k,
                    )
                )
                ours = as_tensor(expand_runs(megatron_position_runs(pack, rank)))
                assert torch.equal(positions, ours), (pack, rank)
                assert torch.equal(index, reorder), (pack, rank)


def test_sbhd_positions_and_reorder_are_megatrons(megatron: SimpleNamespace) -> None:
    for cp_size, seq_length in ((1, 7), (2, 8), (3, 18), (4, 64), (8, 4096)):
        reorder = as_tensor(inverse_permutation(sbhd_pack(seq_length, cp_size=cp_size)))
        index = megatron.layout.build_zigzag_allgather_cp_key_reorder(
            seq_length // cp_size, cp_size, CPU
        )
        assert torch.equal(index, reorder)
        for rank in range(cp_size):
            positions = megatron.layout.build_zigzag_cp_local_positions(
                seq_length, cp_size, rank, CPU
            )
            runs = zigzag_runs(seq_length, cp_size=cp_size, cp_rank=rank)
            assert torch.equal(positions, as_tensor(expand_runs(runs)))


def test_row_bounds_are_megatrons_where_boundaries_are_equal(megatron: SimpleNamespace) -> None:
    compared = 0
    for pack in layouts():
        if not pack.equal_boundaries or pack.cp_size == 32:
            continue
        for rank in range(pack.cp_size):
            limits = [run for run in row_limits(pack, rank) if run.last_limit]
            runs = megatron_position_runs(pack, rank)[: len(limits)]
            starts, ends = megatron.masking.generate_varlen_mask_params_for_positions(
                as_tensor(pack.cu_seqlens_q_padded), as_tensor(expand_runs(runs))
            )
            assert torch.equal(starts, as_tensor(expand_key_starts(limits)))
            assert torch.equal(ends - starts, as_tensor(expand_limits(limits)))
            compared += 1
    assert compared > 40


def test_thd_segments_are_megatrons_where_boundaries_are_equal(megatron: SimpleNamespace) -> None:
    compared = 0
    for pack in layouts():
        if pack.cp_size == 1 or pack.tail_padding or not pack.equal_boundaries:
            continue
        cu = as_tensor(pack.cu_seqlens_q_padded)
        for rank in range(pack.cp_size):
            theirs = megatron.layout.build_packed_cp_indexer_layout(
                cu, cu, cp_size=pack.cp_size, cp_rank=rank, key_size=pack.total_k
            )
            rows = zip(
                theirs.segment_q_lengths.tolist(),
                theirs.segment_k_lengths.tolist(),
                theirs.segment_key_starts.repeat(1).tolist(),
                strict=True,
            )
            ours = [(s.q_length, s.k_length, s.key_start) for s in rank_segments(pack, rank)]
            assert ours == [row for row in rows if row[0]]
            compared += 1
    assert compared > 20


class Reached(Exception):  # noqa: N818 - a marker, not an error
    """Ends a hook at the scorer it chose."""


def _patch_scorers(monkeypatch: pytest.MonkeyPatch, kernels: object) -> None:
    def chunks(*args: object, starts: object = None, **kwargs: object) -> None:
        raise Reached(Plan.PLAIN_CAUSAL if starts is None else Plan.UNFUSED_BOUNDS)

    def reach(plan: Plan) -> object:
        def scorer(*args: object, **kwargs: object) -> None:
            raise Reached(plan)

        return scorer

    monkeypatch.setattr(kernels, "_ensure_dsa_namespace", lambda: None)
    monkeypatch.setattr(kernels, "_indexer_topk_from_score_chunks", chunks)
    single, multi = reach(Plan.PACKED_SINGLE), reach(Plan.PACKED_THD)
    monkeypatch.setattr(kernels, "_indexer_topk_single_packed_cp_segments", single)
    monkeypatch.setattr(kernels, "_indexer_topk_multi_packed_cp_thd", multi)


def _dispatch(megatron: SimpleNamespace, pack: Pack, *, thd: bool, loss: str, split: bool) -> Plan:
    """Call a cuDNN hook as ``DSAttention.forward`` does on rank 0; return the scorer it reaches."""
    cp_size, rows, keys = pack.cp_size, pack.rows_per_rank, pack.total_k
    starts, ends = torch.zeros(rows, dtype=torch.int64), torch.ones(rows, dtype=torch.int64)
    params = None
    if thd:
        params = megatron.packed_seq_params(
            qkv_format="thd",
            cu_seqlens_q=as_tensor(pack.cu_seqlens_q_padded),
            cu_seqlens_kv=as_tensor(pack.cu_seqlens_k_padded),
            max_seqlen_q=pack.max_seqlen_q,
            max_seqlen_kv=pack.max_seqlen_k,
        )
    layout = {
        "use_local_indexer_varlen": thd and cp_size > 1,
        "single_packed_thd_sequence": thd and cp_size > 1 and pack.num_sequences == 1,
        "packed_seq_params": params,
        "cp_size": cp_size,
    }
    q, k, w = torch.zeros(rows, 1, 2, 128), torch.zeros(keys, 1, 128), torch.zeros(rows, 1, 2)
    try:
        if split:
            if loss == "dense":
                return Plan.DECLINE  # DSAttention calls no hook here
            megatron.kernels.run_fused_qk_topk(
                q, k, w, 16, starts.int(), ends.int(), 8192, **layout
            )
        result = megatron.kernels.run_fused_dsa_attention(
            config=SimpleNamespace(kv_lora_rank=512),
            query=torch.zeros(rows, 1, 64, 576),
            key=torch.zeros(keys, 1, 1, 576),
            value=None,
            up_v_weight=torch.zeros(64, 128, 512),
            q_indexer=q,
            k_indexer=k,
            indexer_weights=w,
            indexer_topk=16,
            softmax_scale=1.0,
            loss_coeff=0.0 if loss == "off" else 1.0,
            sparse_loss=loss == "sparse",
            calculate_per_token_loss=False,
            absorbed_mla=True,
            attn_mask_type=megatron.causal,
            varlen_starts=starts,
            varlen_ends=ends,
            key_positions=None,
            query_valid_rows=None,
            varlen_is_plain_causal=not thd and cp_size == 1,
            use_relu=True,
            **layout,
        )
    except Reached as reached:
        return reached.args[0]
    assert result is None
    return Plan.DECLINE


@pytest.mark.skipif(version("megatron-core") != "0.19.2", reason="describes megatron-core 0.19.2")
@pytest.mark.parametrize("loss", ["off", "sparse", "dense"])
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize(
    "pack",
    [
        pack_sequences([16], cp_size=1),
        pack_sequences([8, 8], cp_size=1),
        pack_sequences([16], cp_size=2),
        pack_sequences([13], cp_size=2, tail_padding=4),
        pack_sequences([16], cp_size=2, kv_sequences=[8]),
        pack_sequences([8, 8], cp_size=2),
        pack_sequences([0, 16], cp_size=2),
        pack_sequences([0], cp_size=2),
        pack_sequences([0, 0], cp_size=2),
    ],
    ids=str,
)
def test_released_plan_is_the_branch_the_release_enters(
    megatron: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    pack: Pack,
    split: bool,
    loss: str,
) -> None:
    _patch_scorers(monkeypatch, megatron.kernels)
    facts: dict[str, Any] = {"cp_size": pack.cp_size, "loss": loss, "split_hooks": split}
    expected = released_plan_0192(qkv_format="thd", pack=pack, **facts).plan
    assert _dispatch(megatron, pack, thd=True, loss=loss, split=split) is expected


@pytest.mark.skipif(version("megatron-core") != "0.19.2", reason="describes megatron-core 0.19.2")
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("loss", ["off", "sparse"])
@pytest.mark.parametrize("cp_size", [1, 2])
def test_released_plan_without_packing_is_the_branch_the_release_enters(
    megatron: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    cp_size: int,
    loss: str,
    split: bool,
) -> None:
    _patch_scorers(monkeypatch, megatron.kernels)
    pack = sbhd_pack(16, cp_size=cp_size)
    facts: dict[str, Any] = {"cp_size": cp_size, "loss": loss, "split_hooks": split}
    expected = released_plan_0192(qkv_format="sbhd", **facts).plan
    assert _dispatch(megatron, pack, thd=False, loss=loss, split=split) is expected
