"""Memo evidence and its judge: each planted fault of a memo beside a healthy twin."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from memo_double import FACTS, Microbatch, keep, keep_nothing, memo_build

from harness.evidence.memo import TableLedger, memo_evidence
from harness.evidence.memo_plants import plant_memo
from harness.layout import Pack, pack_sequences
from harness.production.hooks import MissingHookError, installed
from harness.production.recorder import Recorder
from harness.record.memo import MemoEvidence
from harness.reference.site import Site
from harness.runtime.judge_memo import memo_deviations
from harness.scenario.spec import ExpectSpec, MicrobatchSpec, ModelSpec, ParallelSpec, Scenario

PACK = pack_sequences([32, 16], cp_size=2)
TURNED = pack_sequences([16, 32], cp_size=2)
"""Equal sizes, other boundaries."""
RANK = 1
SITE = Site(global_rank=1, cp_rank=RANK)
LAYOUT = "megatron.core.transformer.experimental_attention_variant.dsa_layout"


def scenario(expect: ExpectSpec | None = None) -> Scenario:
    return Scenario(
        id="t",
        summary="",
        model=ModelSpec(name="small", num_layers=4),
        level="model",
        parallel=ParallelSpec(context_parallel_size=2),
        microbatches=(MicrobatchSpec(sequences=(32, 16)),) * 2,
        expect=expect or ExpectSpec(),
    )


def kinds(*memos: MemoEvidence, expect: ExpectSpec | None = None) -> set[str]:
    return {deviation.kind for deviation in memo_deviations(scenario(expect), memos)}


def observe(
    recorder: Recorder, ledger: TableLedger, microbatch: int = 0, *, has_memo: bool = True
) -> MemoEvidence:
    site = replace(SITE, microbatch=microbatch)
    return memo_evidence(recorder, ledger, site, has_memo=has_memo)


Layers = Callable[[Microbatch], None]


def four_layers(microbatch: Microbatch) -> None:
    for number in range(1, 5):
        microbatch.layer(number)


def test_healthy_memo_builds_once_and_serves_the_same_object_to_every_layer():
    with memo_build() as recorder:
        four_layers(Microbatch(recorder, PACK, RANK))
        memo = observe(recorder, TableLedger())
    assert (memo.layers, memo.builds, memo.reuses) == (4, 1, 3)
    assert {request.table for request in memo.requests} == {0}
    assert [request.builds for request in memo.requests] == [1, 0, 0, 0]
    assert all(request.equal for request in memo.requests)
    assert memo.build_s > 0
    assert kinds(memo, expect=ExpectSpec(layout_builds_per_microbatch=1)) == set()


def test_double_build_is_found():
    with memo_build(keep_nothing) as recorder:
        four_layers(Microbatch(recorder, PACK, RANK))
        memo = observe(recorder, TableLedger())
    assert memo.builds == 4
    assert kinds(memo) == {"rebuilt"}


def test_planted_double_build_is_found_and_its_twin_is_not():
    for plants, found in ((("double_build",), {"rebuilt"}), ((), set())):
        with memo_build() as recorder:
            plant_memo(recorder, plants)
            four_layers(Microbatch(recorder, PACK, RANK))
            assert kinds(observe(recorder, TableLedger())) == found


@pytest.mark.parametrize("second", [PACK, TURNED], ids=["equal boundaries", "other boundaries"])
@pytest.mark.parametrize("stale", [True, False])
def test_stale_memo_is_found(second: Pack, stale: bool):
    ledger = TableLedger()
    with memo_build() as recorder:
        first = Microbatch(recorder, PACK, RANK)
        four_layers(first)
        assert kinds(observe(recorder, ledger)) == set()
        after = Microbatch(recorder, second, RANK)
        if stale:
            after.cache = first.cache
        four_layers(after)
        memo = observe(recorder, ledger, 1)
    assert kinds(memo) == ({"stale"} if stale else set())
    if stale and second is TURNED:
        assert not any(request.equal for request in memo.requests)


@pytest.mark.parametrize("stale", [True, False])
def test_planted_stale_memo_is_found(stale: bool):
    ledger = TableLedger()
    found = []
    with memo_build() as recorder:
        for number in range(2):
            plant_memo(recorder, ("stale_memo",) if stale else ())
            four_layers(Microbatch(recorder, PACK, RANK))
            found.append(kinds(observe(recorder, ledger, number)))
    assert found == [set(), {"stale"} if stale else set()]


def test_tables_changed_after_they_were_kept_are_found():
    with memo_build() as recorder:
        microbatch = Microbatch(recorder, PACK, RANK)
        positions, _reorder = microbatch.layer(1)
        positions[0] += 1
        microbatch.layer(2)
        memo = observe(recorder, TableLedger())
    assert [request.equal for request in memo.requests] == [True, False]
    assert kinds(memo) == {"stale"}


def without_flags(key: tuple) -> tuple:
    return key[:-2]


@pytest.mark.parametrize("thin", [True, False])
def test_key_that_ignores_a_cover_flag_is_found(thin: bool):
    # A pack whose queries and keys cover every row allows both answers under the same sizes.
    with memo_build() as recorder:
        microbatch = Microbatch(recorder, pack_sequences([32], cp_size=2), RANK)
        spoil = without_flags if thin else (lambda key: key)
        microbatch.layer(1, flags=(True, True), key=spoil)
        microbatch.layer(1, flags=(False, True), key=spoil)
        memo = observe(recorder, TableLedger())
    assert ("thin_key" in kinds(memo)) is thin


def test_equal_geometry_under_unequal_keys_is_found():
    """One site proves the cover flags, the other writes them down as false."""
    with memo_build() as recorder:
        microbatch = Microbatch(recorder, pack_sequences([32], cp_size=2), RANK)
        microbatch.layer(1, flags=(True, True))
        microbatch.layer(1, flags=(False, False))
        memo = observe(recorder, TableLedger())
    assert memo.builds == 2
    assert kinds(memo) == {"unequal_keys"}


def test_key_without_the_rank_is_found():
    def no_rank(key: tuple) -> tuple:
        return (*key[:2], *key[3:])

    with memo_build() as recorder:
        microbatch = Microbatch(recorder, PACK, RANK)
        microbatch.layer(1, key=no_rank)
        other = Microbatch(recorder, PACK, 0)
        recorder.calls = []
        other.cache = microbatch.cache
        other.layer(1, key=no_rank)
        memo = observe(recorder, TableLedger())
    assert "stale" in kinds(memo), "served the other rank's tables"


def test_build_without_a_memo_is_a_fact_and_no_deviation():
    recorder = Recorder(raw={"layout_tables"})
    module = importlib.import_module(LAYOUT)
    with installed(recorder, "0.19.2"):
        recorder.clear()
        for number in range(1, 5):
            recorder.layer = number
            recorder.record("attention", "megatron", None, {}, lambda: None)
            module.build_packed_allgather_cp_query_positions_and_key_reorder(
                torch.tensor(PACK.cu_seqlens_q_padded),
                torch.tensor(PACK.cu_seqlens_k_padded),
                2,
                RANK,
                torch.device("cpu"),
                PACK.rows_per_rank,
                PACK.key_rows_per_rank,
                PACK.total_k,
            )
        memo = observe(recorder, TableLedger(), has_memo=False)
    assert (memo.builds, memo.layers) == (4, 4)
    assert kinds(memo) == set()
    assert kinds(memo, expect=ExpectSpec(layout_builds_per_microbatch=4)) == set()
    assert kinds(memo, expect=ExpectSpec(layout_builds_per_microbatch=1)) == {"builds"}


def test_sorts_and_reads_count_only_where_boundaries_were_prebuilt():
    with memo_build() as recorder:
        four_layers(Microbatch(recorder, PACK, RANK))
        memo = observe(recorder, TableLedger())
    assert memo.requests[0].sorts == 1, "the released builder sorts"
    assert memo.requests[0].reads > 0, "and reads sizes that depend on values"
    assert kinds(memo) == set()
    assert kinds(replace(memo, prebuilt=True)) == {"device_read"}
    quiet = tuple(replace(request, sorts=0, reads=0) for request in memo.requests)
    assert kinds(replace(memo, prebuilt=True, requests=quiet)) == set()


def test_a_memo_that_nothing_goes_through_is_loud():
    with memo_build() as recorder:
        recorder.clear()
        recorder.record("attention", "megatron", None, {}, lambda: None)
        memo = observe(recorder, TableLedger())
    assert kinds(memo) == {"unseen"}
    assert kinds(replace(memo, has_memo=False)) == set()


def test_expected_builds_need_evidence():
    assert kinds(expect=ExpectSpec(layout_builds_per_microbatch=1)) == {"unseen"}
    assert kinds() == set()


def test_a_vanished_memo_hook_is_an_error_that_names_it():
    missing = pytest.raises(MissingHookError, match=r"DSAttention\._memoized \(hook 'memo'")
    with missing, memo_build(None):
        pass


def test_a_build_without_the_fact_may_lack_the_hook():
    recorder = Recorder()
    with installed(recorder, "0.19.2", {**FACTS, "has_layout_memo": False}):
        pass
    assert {"memo", "plan", "layout_tables_host"} <= set(recorder.absent)


def test_keep_is_what_the_double_says():
    cache: dict = {}
    assert keep(cache, ("a",), lambda: 1) == keep(cache, ("a",), lambda: 2) == 1
    assert keep(None, ("a",), lambda: 3) == 3
