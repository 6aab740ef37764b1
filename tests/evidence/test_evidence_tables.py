"""Layout tables against ``harness.layout``: the build's own, and changed ones beside them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from harness.evidence.tables import difference, flag_evidence, table_evidence
from harness.layout import Pack, pack_sequences
from harness.production import preload  # noqa: F401 (imports Megatron once, warnings silenced)
from harness.production.hooks import installed
from harness.production.packs import packed_seq_params
from harness.production.recorder import Recorder
from harness.record.evidence import LayoutEvidence
from harness.reference.site import Site

VARIANT = "megatron.core.transformer.experimental_attention_variant"
CPU = torch.device("cpu")

EQUAL_BOUNDARIES = [
    pytest.param(lambda cp: pack_sequences([64, 32, 32], cp_size=cp), id="several"),
    pytest.param(lambda cp: pack_sequences([61, 3, 0, 17, 0], cp_size=cp), id="empties, padding"),
    pytest.param(lambda cp: pack_sequences([0, 0, 48], cp_size=cp), id="empties in front"),
    pytest.param(
        lambda cp: pack_sequences([20, 5], cp_size=cp, padded=[64, 48]), id="long padding"
    ),
    pytest.param(lambda cp: pack_sequences([96], cp_size=cp), id="one"),
    pytest.param(lambda cp: pack_sequences([32, 0, 29], cp_size=cp, tail_padding=16), id="tail"),
]
MakePack = Callable[[int], Pack]


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    found = Recorder()
    with installed(found, "0.19.2"):
        yield found


def module(name: str) -> Any:
    return importlib.import_module(f"{VARIANT}.{name}")


def ask(pack: Pack, cp_rank: int) -> None:
    """Ask the build for positions and reorder, bounds and segments, as a forward does."""
    params = packed_seq_params(pack)
    positions = None
    if pack.cp_size > 1:
        builder = module("dsa_layout").build_packed_allgather_cp_query_positions_and_key_reorder
        positions, _reorder = builder(
            cu_seqlens_q=params.cu_seqlens_q_padded,
            cu_seqlens_kv=params.cu_seqlens_kv_padded,
            cp_size=pack.cp_size,
            cp_rank=cp_rank,
            device=CPU,
            local_output_size=pack.rows_per_rank,
            key_local_output_size=pack.key_rows_per_rank,
            global_output_size=pack.total_k,
        )
        if not pack.key_tail_padding:
            module("dsa_layout").build_packed_cp_indexer_layout(
                params.cu_seqlens_q_padded,
                params.cu_seqlens_kv_padded,
                cp_size=pack.cp_size,
                cp_rank=cp_rank,
                key_size=pack.total_k,
            )
    module("dsa_masking").build_dsattention_forward_mask(
        sq=pack.rows_per_rank,
        skv=pack.total_k,
        b=1,
        device=CPU,
        cp_size=pack.cp_size,
        cp_rank=cp_rank,
        cp_comm_type="allgather",
        cp_group=None,
        attn_mask_type=module("dsa_masking").AttnMaskType.causal,
        attention_mask=None,
        position_ids=None,
        packed_seq_params=params,
        packed_query_positions=positions,
    )


def compare(recorder: Recorder, pack: Pack, cp_rank: int) -> dict[str, LayoutEvidence]:
    site = Site(global_rank=0, cp_rank=cp_rank, layer=1)
    return {item.table: item for item in table_evidence(recorder, pack, site)}


def wrong(found: dict[str, LayoutEvidence]) -> set[str]:
    return {name for name, item in found.items() if not item.equal}


@pytest.mark.parametrize("make", EQUAL_BOUNDARIES)
@pytest.mark.parametrize("cp_size", [1, 2, 4, 8])
def test_tables_of_the_build_are_right_on_every_rank(
    recorder: Recorder, cp_size: int, make: MakePack
):
    pack = make(cp_size)
    for cp_rank in range(cp_size):
        recorder.clear()
        ask(pack, cp_rank)
        found = compare(recorder, pack, cp_rank)
        assert wrong(found) == set()
        names = {"starts", "ends"}
        if cp_size > 1:
            names |= {"query_positions", "key_reorder"}
            if not pack.key_tail_padding:
                names |= {"segment_q_lengths", "segment_k_lengths", "segment_key_starts"}
        assert set(found) == names


def test_every_honest_combination_of_cover_flags_is_asked(recorder: Recorder):
    site = Site(global_rank=0, cp_rank=1, layer=1)
    cases = {
        pack_sequences([32, 16], cp_size=2): 4,
        pack_sequences([32, 16], cp_size=2, tail_padding=4): 1,
        pack_sequences([32], cp_size=2, kv_sequences=[16]): 2,
    }
    for pack, combinations in cases.items():
        recorder.clear()
        ask(pack, 1)
        calls = len(recorder.calls)
        found = list(flag_evidence(recorder, pack, site))
        assert len(found) == 2 * combinations
        assert all(item.equal for item in found)
        assert len(recorder.calls) == calls, "asked aside"


def test_other_key_boundaries_leave_bounds_of_the_release_wrong(recorder: Recorder):
    pack = pack_sequences([32, 32], cp_size=2, kv_sequences=[48, 16])
    ask(pack, 0)
    found = compare(recorder, pack, 0)
    assert wrong(found) == {"starts", "ends", "segment_k_lengths"}
    assert "expected 48, found 32" in found["starts"].detail


def shifted(place: int) -> Callable[[Any, Any], Any]:
    def change(_call: Any, result: Any) -> Any:
        parts = [part.clone() for part in result]
        parts[place][3] += 1
        return tuple(parts)

    return change


@pytest.mark.parametrize(
    ("symbol", "change", "tables"),
    [
        # Bounds follow the positions, as they do in the build.
        ("layout_tables", shifted(0), {"query_positions", "ends"}),
        ("layout_tables", shifted(1), {"key_reorder"}),
        (
            "bounds",
            lambda _call, result: (result[0], (result[1][0] + 1, *result[1][1:]), result[2]),
            {"starts"},
        ),
    ],
)
def test_a_changed_table_is_found(recorder: Recorder, symbol: str, change: Any, tables: set[str]):
    pack = pack_sequences([64, 32], cp_size=2)
    recorder.transforms[symbol] = change
    ask(pack, 1)
    assert wrong(compare(recorder, pack, 1)) == tables


def test_kernel_boundaries_are_compared(recorder: Recorder):
    pack = pack_sequences([8, 0, 8], cp_size=2)
    right = {
        "cu_seqlens_q": torch.tensor([0, 2, 4, 4, 4, 6, 8], dtype=torch.int32),
        "cu_seqlens_k": torch.tensor([0, 2, 10, 10, 10, 12, 20], dtype=torch.int32),
    }
    for change, tables in ((0, set()), (1, {"kernel_k_lengths"})):
        recorder.clear()
        given = right | {"cu_seqlens_k": right["cu_seqlens_k"] + change * torch.arange(7)}
        recorder.record("indexer_forward", "modelled", None, given, lambda: None)
        assert wrong(compare(recorder, pack, 0)) == tables


def test_unpacked_reorder_is_compared(recorder: Recorder):
    pack = pack_sequences([16], cp_size=2)
    module("dsa_layout").build_zigzag_allgather_cp_key_reorder(8, 2, CPU)
    assert wrong(compare(recorder, pack, 0)) == set()
    assert wrong(compare(recorder, pack_sequences([8, 8], cp_size=2), 0)) == {"key_reorder"}


def test_a_difference_says_where():
    due = torch.tensor([0, 1, 2])
    assert difference(due, due) == ""
    assert difference(torch.tensor([0, 2, 2]), due) == (
        "1 of 3 entries differ, first at 1: expected 1, found 2"
    )
    assert difference(torch.tensor([0, 1]), due) == "expected 3 entries, found 2"
