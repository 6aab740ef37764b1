"""Each collector's finding has its verdict; beside it the twin that is as it should be."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.record.copies import CopyEvidence
from harness.record.graphs import FAILED, GraphEvidence, GraphReplay, GraphWarning
from harness.record.launches import LaunchEvidence
from harness.record.state import StateChange, StateEvidence
from harness.record.transfers import TransferEvidence, TransferSite
from harness.record.verdict import Verdict
from harness.runtime.journal import Journal, read_journal
from harness.runtime.judge_collected import collected_deviations
from harness.scenario.spec import ExpectSpec, MicrobatchSpec, ModelSpec, Scenario

RANK = {"global_rank": 0, "cp_rank": 0, "microbatch": 0, "seed": 0}
READ = TransferSite(
    kind="data_shape",
    operation="aten.index.Tensor",
    site="megatron/a.py:1",
    function="f",
    phase="layout",
    count=5,
)
LAYERS = tuple(
    TransferEvidence(**RANK, layer=layer, how="look_alike", sites=(READ,)) for layer in (1, 2, 3)
)
EXTRA = (
    LAYERS[0],
    replace(LAYERS[1], sites=(READ, replace(READ, kind="host_read", count=1))),
    LAYERS[2],
)
STATE = StateEvidence(**RANK, groups=3, settings=9, dispatch=2)
LEFT = StateChange(name="group cp", before="ranks 0, 1", after="ranks 0")
LAUNCH = LaunchEvidence(**RANK, layer=1, launch="again", rows=8, output_compared=True)
GRAPH = GraphEvidence(
    **RANK,
    backend="cudnn",
    impl="local",
    modules=("attn",),
    dynamic_cp=False,
    cp_size=2,
    constructs=True,
    warnings_due=1,
)
WARNED = GraphWarning(text="packed DSA ...", category="UserWarning", count=1, about_packed_dsa=True)
REPLAY = GraphReplay(pack=(64, 32), rows=48, rows_different=0, output_difference=0.0)
COPY = CopyEvidence(global_rank=0, cp_size=2, table="key_reorder", repeats=3, equal=True)


@pytest.fixture
def deviations(tmp_path):
    def judge(*evidence, facts=None, **expect):
        path = tmp_path / "rank0.jsonl"
        journal = Journal(path, global_rank=0)
        for record in evidence:
            journal.evidence(record)
        journal.close()
        content = read_journal(path, global_rank=0)
        path.unlink()
        scenario = Scenario(
            id="t",
            summary="",
            model=ModelSpec(name="small"),
            microbatches=(MicrobatchSpec(sequences=(8, 8)),),
            expect=ExpectSpec(**expect),
        )
        return collected_deviations(scenario, [content], facts or {})

    return judge


@pytest.mark.parametrize("wanted", ["equal", 5])
def test_an_extra_read_in_one_layer_is_a_wrong_path(deviations, wanted):
    assert deviations(*LAYERS, host_reads_per_layer=wanted) == ()
    (found,) = deviations(*EXTRA, host_reads_per_layer=wanted)
    assert (found.verdict, found.kind) == (Verdict.WRONG_PATH, "host_reads")
    assert "expected 5, found 6 in layer 2" in found.text


def test_only_what_is_expected_of_reads_is_judged(deviations):
    assert deviations(*EXTRA) == ()


def test_the_first_layer_may_make_what_a_build_keeps(deviations):
    kept = (EXTRA[1], *(replace(record, sites=()) for record in LAYERS[1:]))
    kept = tuple(replace(record, layer=n) for n, record in enumerate(kept, start=1))
    assert len(deviations(*kept, host_reads_per_layer="equal")) == 1
    assert not deviations(*kept, host_reads_per_layer="equal", facts={"has_layout_memo": True})


def test_only_the_first_layer_may_wait_where_that_is_expected(deviations):
    quiet = (LAYERS[0], *(replace(record, sites=()) for record in LAYERS[1:]))
    quiet = tuple(replace(record, layer=n) for n, record in enumerate(quiet, start=1))
    assert quiet[0].host_reads
    assert deviations(*quiet, host_reads_per_layer="first_layer") == ()
    (found,) = deviations(quiet[0], EXTRA[1], host_reads_per_layer="first_layer")
    assert (found.kind, "expected 0" in found.text) == ("host_reads", True)


def test_missing_evidence_is_the_harnesss_fault(deviations):
    (found,) = deviations(host_reads_per_layer=0)
    assert found.verdict is Verdict.HARNESS_ERROR
    (found,) = deviations(graph_warnings=0)
    assert found.verdict is Verdict.HARNESS_ERROR


def test_what_moved_is_a_state_leak_that_names_it(deviations):
    assert deviations(STATE) == ()
    (found,) = deviations(replace(STATE, moved=(LEFT,)))
    assert found.verdict is Verdict.STATE_LEAK
    assert "group cp: ranks 0, 1 before, ranks 0 after" in found.text


@pytest.mark.parametrize(
    ("changes", "red"),
    [
        ({}, False),
        ({"rows_different": 2, "rows_tied": 2}, False),
        ({"rows_different": 2, "rows_tied": 1}, True),
        ({"output_difference": 0.5}, True),
        ({"output_difference": 0.5, "launch": "grad"}, False),
        ({"gradient_difference": 0.5}, True),
        ({"gradient_difference": 0.0}, False),
        ({"why_not": "only one sequence"}, False),
    ],
)
def test_other_keys_that_are_no_ties_are_nondeterministic(deviations, changes, red):
    found = deviations(replace(LAUNCH, **changes))
    assert [item.verdict for item in found] == [Verdict.NONDETERMINISTIC] * red


@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_warning_comes_once_neither_never_nor_twice(deviations, count):
    warnings = (replace(WARNED, count=count),) if count else ()
    found = deviations(replace(GRAPH, warnings=warnings), graph_warnings=1)
    assert [item.kind for item in found] == ["graph_warnings"] * (count != 1)
    silent = replace(GRAPH, warnings=(replace(WARNED, about_packed_dsa=False),))
    assert not deviations(silent, graph_warnings=0)


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, None),
        ({"replays": (REPLAY,)}, None),
        ({"constructs": False, "refusal": "ValueError: no"}, Verdict.REFUSED),
        ({"capture": FAILED, "reason": "RuntimeError: stopped"}, Verdict.CAPTURE_FAILED),
        ({"replays": (replace(REPLAY, rows_different=1),)}, Verdict.REPLAY_MISMATCH),
        ({"replays": (replace(REPLAY, output_difference=0.1),)}, Verdict.REPLAY_MISMATCH),
    ],
)
def test_construction_capture_and_replay_have_their_verdicts(deviations, changes, verdict):
    found = deviations(replace(GRAPH, **changes))
    assert [item.verdict for item in found] == ([] if verdict is None else [verdict])


def test_a_table_that_arrives_changed_is_a_wrong_value(deviations):
    assert deviations(COPY, replace(COPY, equal=None, why_not="missing usable GPU")) == ()
    (found,) = deviations(replace(COPY, equal=False))
    assert found.verdict is Verdict.WRONG_VALUE
