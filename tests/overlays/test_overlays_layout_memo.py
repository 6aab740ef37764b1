"""Overlay layout_memo: the tables are right, made once for a microbatch, and never stale."""

from __future__ import annotations

import copy
from dataclasses import replace

import overlay_builds
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.evidence.memo import TableLedger, memo_evidence, watch_memo
from harness.layout import (
    Pack,
    expand_runs,
    inverse_permutation,
    megatron_position_runs,
    pack_sequences,
)
from harness.overlays import layout_memo
from harness.overlays.boundaries import on_host
from harness.overlays.host_tables import gathered_index, local_positions, split
from harness.overlays.refusal import OverlayRefusedError
from harness.production.hooks import installed
from harness.production.packs import packed_seq_params
from harness.production.recorder import Recorder
from harness.reference.site import Site
from harness.runtime.judge_memo import memo_deviations
from harness.scenario.spec import MicrobatchSpec, ModelSpec, ParallelSpec, Scenario

CPU = torch.device("cpu")
PACK = pack_sequences([32, 16], cp_size=2)


def boundaries(lengths: tuple[int, ...]) -> torch.Tensor:
    return torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0).to(torch.int32)


@st.composite
def packs(draw: st.DrawFn) -> Pack:
    cp_size = draw(st.sampled_from([2, 3, 4, 8]))
    lengths = draw(st.lists(st.integers(0, 40), min_size=1, max_size=8))
    tail = draw(st.integers(0, 3)) * cp_size
    return pack_sequences(lengths, cp_size=cp_size, tail_padding=tail)


@given(packs())
@settings(max_examples=80, deadline=None)
def test_tables_are_those_of_the_harnesss_own_layout(pack):
    cut = split(boundaries(pack.k_padded), pack.cp_size, pack.rows_per_rank)
    assert gathered_index(cut).tolist() == list(inverse_permutation(pack))
    for rank in range(pack.cp_size):
        due = expand_runs(megatron_position_runs(pack, rank))
        assert local_positions(cut, rank).tolist() == list(due)


@given(packs(), st.booleans())
@settings(max_examples=40, deadline=None)
def test_tables_and_refusals_are_those_of_the_released_builder(pack, with_size):
    layout = overlay_builds.module("dsa_layout")
    cu_seqlens = boundaries(pack.q_padded)
    sizes = {"local_output_size": pack.rows_per_rank, "global_output_size": pack.total_k}
    sizes = sizes if with_size or pack.tail_padding else {}
    for rank in range(pack.cp_size):
        arguments = (cu_seqlens, cu_seqlens, pack.cp_size, rank, CPU)
        released, made = (
            outcome(build, *arguments, **sizes)
            for build in (
                layout.build_packed_allgather_cp_query_positions_and_key_reorder,
                layout_memo._positions_and_reorder,
            )
        )
        assert made == released


def outcome(build, *args, **kwargs):
    try:
        return [table.tolist() for table in build(*args, **kwargs)]
    except (RuntimeError, ValueError) as error:
        return type(error)


@pytest.mark.parametrize("lengths", [(6, 4), (4, 5), (12, 2)])
def test_lengths_that_do_not_split_are_refused_in_the_builds_own_words(lengths):
    layout = overlay_builds.module("dsa_layout")
    for build in (layout.build_packed_allgather_cp_local_positions, layout_memo._positions):
        with pytest.raises(ValueError, match=r"expects per-(sequence|rank)"):
            build(boundaries(lengths), 2, 0, CPU)


def test_a_promise_that_does_not_hold_is_refused():
    with pytest.raises(ValueError, match="4 local rows lie behind"):
        layout_memo._positions(
            boundaries((8, 8)), 2, 0, CPU, output_size=12, cu_seqlens_cover_output=True
        )
    with pytest.raises(RuntimeError, match="8 local rows are due"):
        layout_memo._positions(boundaries((8, 8)), 2, 0, CPU, output_size=4)


class Microbatch:
    """Layers of one microbatch that ask for their tables as ``DSAttention.forward`` does."""

    def __init__(self, pack: Pack = PACK, rank: int = 1) -> None:
        self.pack = pack
        self.rank = rank
        self.params = packed_seq_params(pack)

    def ask(self, rows: int | None = None, **flags):
        layout = overlay_builds.module("dsa").dsa_layout
        rows = self.pack.rows_per_rank if rows is None else rows
        token = layout_memo._MICROBATCH.set(self.params)
        try:
            return layout.build_packed_allgather_cp_query_positions_and_key_reorder(
                cu_seqlens_q=self.params.cu_seqlens_q_padded,
                cu_seqlens_kv=self.params.cu_seqlens_kv_padded,
                cp_size=self.pack.cp_size,
                cp_rank=self.rank,
                device=CPU,
                local_output_size=rows,
                key_local_output_size=rows,
                global_output_size=rows * self.pack.cp_size,
                **flags,
            )
        finally:
            layout_memo._MICROBATCH.reset(token)


@pytest.fixture
def overlay():
    undo = layout_memo.install()
    yield
    undo()


def test_layers_of_a_microbatch_share_their_tables_and_microbatches_do_not(overlay):
    first, second = Microbatch(), Microbatch(pack_sequences([16, 32], cp_size=2))
    tables = first.ask()
    assert all(first.ask()[0] is tables[0] for _layer in range(3))
    others = second.ask()
    assert others[0] is not tables[0]
    assert others[1].tolist() == list(inverse_permutation(second.pack))


def test_both_sites_share_what_is_equal_whatever_their_cover_flags(overlay):
    microbatch = Microbatch()
    tables = microbatch.ask(query_cu_seqlens_cover_output=True, key_cu_seqlens_cover_output=True)
    assert microbatch.ask()[1] is tables[1]


def test_other_sizes_and_boundaries_written_again_get_tables_of_their_own(overlay):
    microbatch = Microbatch()
    tables = microbatch.ask()
    assert microbatch.ask(microbatch.pack.rows_per_rank + 4)[0].numel() == tables[0].numel() + 4
    turned = pack_sequences([16, 32], cp_size=2)
    for name in ("cu_seqlens_q_padded", "cu_seqlens_kv_padded"):
        getattr(microbatch.params, name).copy_(boundaries(turned.q_padded))
    assert microbatch.ask()[1].tolist() == list(inverse_permutation(turned))


@pytest.mark.parametrize("copied", [False, True], ids=["the same object", "a shallow copy"])
def test_boundaries_replaced_by_other_tensors_get_tables_of_their_own(overlay, copied):
    microbatch = Microbatch()
    microbatch.ask()
    if copied:  # it shares the memo of the first
        microbatch.params = copy.copy(microbatch.params)
    turned = pack_sequences([16, 32], cp_size=2)
    for name in ("cu_seqlens_q_padded", "cu_seqlens_kv_padded"):
        setattr(microbatch.params, name, boundaries(turned.q_padded))
    assert microbatch.ask()[1].tolist() == list(inverse_permutation(turned))


def test_boundaries_without_a_version_are_read_each_time(overlay):
    with torch.inference_mode():
        microbatch = Microbatch()
        microbatch.ask()
        turned = pack_sequences([16, 32], cp_size=2)
        for name in ("cu_seqlens_q_padded", "cu_seqlens_kv_padded"):
            getattr(microbatch.params, name).copy_(boundaries(turned.q_padded))
        assert microbatch.ask()[1].tolist() == list(inverse_permutation(turned))


def test_nothing_is_kept_outside_a_microbatch(overlay):
    microbatch = Microbatch()
    microbatch.params = None
    with pytest.raises(AttributeError):
        microbatch.ask()
    layout = overlay_builds.module("dsa").dsa_layout
    asked = [
        layout.build_packed_allgather_cp_local_positions(boundaries((32, 16)), 2, 1, CPU)
        for _ in range(2)
    ]
    assert asked[0] is not asked[1]
    assert asked[0].tolist() == asked[1].tolist()


def observed(*asks) -> set[str]:
    """Kinds of deviations that the harness finds in requests of one microbatch."""
    facts = {"has_layout_memo": True}
    recorder = Recorder()
    watch_memo(recorder)
    microbatch = Microbatch()
    with installed(recorder, "0.19.2", facts):
        recorder.clear()
        for layer, rows in enumerate(asks, start=1):
            recorder.layer = layer
            microbatch.ask(rows)
        site = Site(global_rank=1, cp_rank=1)
        memo = memo_evidence(recorder, TableLedger(), site, has_memo=True)
    scenario = Scenario(
        id="t",
        summary="",
        model=ModelSpec(name="small", num_layers=4),
        level="model",
        parallel=ParallelSpec(context_parallel_size=2),
        microbatches=(MicrobatchSpec(sequences=(32, 16)),),
    )
    assert memo.builds == len(set(asks)) or memo.builds == 1
    return {deviation.kind for deviation in memo_deviations(scenario, (replace(memo, layers=4),))}


ROWS = PACK.rows_per_rank


def test_a_key_without_the_query_size_is_found_to_serve_stale_tables(overlay, monkeypatch):
    assert observed(ROWS, ROWS, ROWS + 4, ROWS) == set()
    key = layout_memo.table_key
    monkeypatch.setattr(
        layout_memo,
        "table_key",
        lambda kind, sizes, *rest: key(kind, sizes[:2], *rest),
    )
    assert {"stale", "thin_key"} <= observed(ROWS, ROWS, ROWS + 4, ROWS)


def test_the_rotary_embedding_selects_the_same_rows_by_the_hosts_copy(overlay, monkeypatch):
    rotary = overlay_builds.module("dsa").apply_rotary_pos_emb.__globals__
    given = []

    def spy(cu_seqlens):
        given.append(cu_seqlens)
        return on_host(cu_seqlens)

    monkeypatch.setattr(layout_memo, "on_host", spy)
    apply = rotary["_apply_rotary_pos_emb_thd"]
    group = type("Group", (), {"size": lambda self: 2, "rank": lambda self: 1})()
    t, freqs = torch.randn(24, 2, 8), torch.randn(32, 1, 1, 8)
    cu_seqlens = boundaries((32, 16))
    found = apply(t, cu_seqlens, freqs, cp_group=group)
    assert given[0] is cu_seqlens
    assert torch.equal(found, apply.__wrapped__(t, cu_seqlens, freqs, cp_group=group))


def test_a_build_with_a_memo_is_refused(monkeypatch):
    dsa = overlay_builds.module("dsa")
    monkeypatch.setattr(dsa.DSAttention, "_memoized", staticmethod(lambda: None), raising=False)
    before = overlay_builds.snapshot()
    with pytest.raises(OverlayRefusedError, match="keeps the layout tables of a microbatch itself"):
        layout_memo.install()
    assert overlay_builds.snapshot() == before


def test_a_build_with_other_builders_is_refused_and_stays_as_it_was(monkeypatch):
    layout = overlay_builds.module("dsa_layout")
    name = "build_packed_allgather_cp_local_positions"
    monkeypatch.setattr(layout, name, lambda cu_seqlens, layout: None)
    before = overlay_builds.snapshot()
    with pytest.raises(OverlayRefusedError, match=r"expected dsa_layout\..* to take output_size"):
        layout_memo.install()
    assert overlay_builds.snapshot() == before
