"""Level ``kernel`` end to end in this process: a defect turns red, its twin stays green."""

from __future__ import annotations

import pytest
import torch

from harness.production.kernel_call import call_case
from harness.production.locate import BuildError, find_build
from harness.record.result import RankOutcome
from harness.record.verdict import Outcome, Verdict
from harness.runtime.blame import exception_evidence
from harness.runtime.cases import cases
from harness.runtime.engine import execute
from harness.runtime.journal import Journal, read_journal
from harness.runtime.judge import conclude, judge_attempt
from harness.runtime.task import Task
from harness.scenario.loader import load

pytestmark = pytest.mark.timeout(240)

SCENARIO = """\
id: level/kernel
summary: One call.
model:
  base: small
  num_attention_heads: {heads}
  dsa_indexer_n_heads: {index_heads}
  dsa_indexer_topk: {k}
level: kernel
kernels:
  dsa_kernel_backend: cudnn
  source: modelled
  modelled: {{cudnn_frontend: "1.32.0", arch: {arch}, defects: {defects}}}
microbatches: [{{sequences: [{rows}], qkv_format: sbhd}}]
kernel_call: {{{call}}}
"""


@pytest.fixture(autouse=True)
def one_build():
    try:
        find_build()
    except BuildError as missing:
        pytest.skip(str(missing))


def scenario_of(folder, call, *, defects="none", **more):
    usual = {"arch": "sm100", "heads": 64, "index_heads": 64, "rows": "4", "k": 128}
    path = folder / "case.yaml"
    path.write_text(SCENARIO.format(call=call, defects=defects, **{**usual, **more}))
    loaded = load([path])
    assert loaded.problems == ()
    return loaded.scenarios[0].scenario


def attempt_of(scenario, folder):
    """Run in this process, as isolation ``none`` does, and judge from the journal."""
    task = Task(
        scenario=scenario,
        global_rank=0,
        local_rank=0,
        world_size=1,
        store=str(folder / "store"),
        folder=str(folder),
        cp_ranks=(0,),
    )
    journal = Journal(task.journal, global_rank=0)
    raised = None
    try:
        execute(task, journal)
        journal.close()
    except Exception as error:  # noqa: BLE001 (what a rank does with it)
        raised = exception_evidence(error)
        journal.close("exception")
    rank = RankOutcome(
        global_rank=0, completed=raised is None, exception=raised, last_phase=journal.current
    )
    content = read_journal(folder / "rank0.jsonl", global_rank=0)
    return judge_attempt(
        scenario, (rank,), [content], number=1, started_at="", duration_s=0.0, isolation="none"
    )


BACKWARD = "wrapper: indexer_backward, keys: 40, selected: 20"
ATTENTION = "wrapper: sparse_attention_backward, keys: 80"
TARGET = "wrapper: sparse_attn_score_recompute, keys: 80, selected: 40, lengths: selected"
FORWARD = "wrapper: indexer_forward, keys: 200, offsets: given"
TWO = "4, 4"

CASES = {
    "d550": (BACKWARD + ", edits: [{row: 1, slot: 3, id: 40}]", {"rows": TWO}),
    "unzeroed_dk": (BACKWARD + ", d_index_k: filled", {}),
    "d384": (ATTENTION + ", lengths: slots", {"arch": "sm90", "heads": 32, "k": 64}),
    "d298": ("wrapper: sparse_attention_backward, keys: 40, placement: back", {"k": 64}),
    "d1549": (TARGET + ", edits: [{row: 2, length: 10}]", {"heads": 32}),
    "d877": (ATTENTION + ", edits: [{row: 2, slot: 5, id: 80}]", {"k": 64}),
    "d785": (ATTENTION + ", edits: [{row: 2, slot: 5, id: 80}]", {"arch": "sm90", "k": 64}),
    "d433": (ATTENTION + ", lengths: slots, edits: [{row: 1, length: 0}]", {"k": 64}),
    "d317": (TARGET, {}),
    "slot_arithmetic": (TARGET, {"k": 384}),
    "d446": ("wrapper: indexer_top_k, keys: 4200, scores: underflow", {"k": 2048}),
    "d406": ("wrapper: indexer_top_k, keys: 2100", {"k": 705}),
    "mask_leak": (FORWARD + ", position: 61", {"arch": "sm90", "index_heads": 32, "k": 64}),
    "tie_cap": ("wrapper: indexer_top_k, keys: 8320, scores: plateau, above: 100", {"k": 2048}),
    "candidate_cap": ("wrapper: indexer_top_k, keys: 16448, scores: ascending", {"k": 2048}),
    "nan_ids": ("wrapper: indexer_top_k, keys: 1000, scores: nan", {}),
    "over_limit": ("wrapper: indexer_top_k, keys: 200, selected: 140, scores: ascending", {}),
    "fixed_width": ("wrapper: indexer_top_k, keys: 2100", {}),
    "rounded_width": ("wrapper: indexer_top_k, keys: 705", {}),
    "zero_scores": (FORWARD + ", position: 190", {"k": 64}),
}
VERDICTS = {
    "d550": Verdict.WRONG_GRADIENT,
    "unzeroed_dk": Verdict.WRONG_GRADIENT,
    "d384": Verdict.WRONG_GRADIENT,
    "d298": Verdict.WRONG_GRADIENT,
    "d1549": Verdict.WRONG_VALUE,
    "d877": Verdict.MEMORY_FAULT,
    "d785": Verdict.MEMORY_FAULT,
    "d433": Verdict.HANG,
    "d317": Verdict.COMPILE_FAILED,
    "slot_arithmetic": Verdict.HANG,
    "d446": Verdict.MEMORY_FAULT,
    "d406": Verdict.REFUSED,
    "mask_leak": Verdict.WRONG_VALUE,
    "tie_cap": Verdict.WRONG_SELECTION,
    "candidate_cap": Verdict.WRONG_SELECTION,
    "nan_ids": Verdict.OUT_OF_BOUNDS,
    "over_limit": Verdict.OUT_OF_BOUNDS,
    "fixed_width": Verdict.REFUSED,
    "rounded_width": Verdict.MEMORY_FAULT,
    "zero_scores": Verdict.WRONG_VALUE,
}
WRONG = {
    "d550": {"grad.q_indexer.batch0", "grad.weights.batch0", "grad.k_indexer.batch1"},
    "unzeroed_dk": {"grad.k_indexer"},
    "d384": {"grad.query", "grad.key"},
    "d298": {"grad.key"},
    "d1549": {"score_target"},
    "mask_leak": {"masked_cells"},
    "zero_scores": {"scores"},
}


@pytest.mark.parametrize("defect", CASES)
def test_a_defect_has_its_verdict_and_its_values(defect, tmp_path):
    call, more = CASES[defect]
    scenario = scenario_of(tmp_path, call, defects=f"[{defect}]", **more)
    attempt = attempt_of(scenario, tmp_path)
    assert attempt.verdict is VERDICTS[defect], attempt.fault
    wrong = {value.name for value in attempt.values if not value.within}
    assert wrong == WRONG.get(defect, set())
    result = conclude(scenario, (attempt,), file="", rerun="")
    assert result.outcome is Outcome.UNEXPECTED


@pytest.mark.parametrize("defect", CASES)
def test_its_twin_without_defects_passes_with_every_value_compared(defect, tmp_path):
    call, more = CASES[defect]
    attempt = attempt_of(scenario_of(tmp_path, call, **more), tmp_path)
    assert attempt.verdict is Verdict.PASS, attempt.fault
    assert attempt.values and attempt.calls
    (path,) = attempt.paths
    assert path.plan == "none" and path.scorer == attempt.calls[0].symbol
    assert attempt.proof.kernels[path.scorer].startswith("modelled 1.32.0")


def test_a_refusal_of_the_wrapper_is_the_builds(tmp_path):
    """Heads that the kernel does not take: the wrapper raises, and nobody else is to blame."""
    text = "wrapper: indexer_backward, keys: 40, selected: 20, slots: 100"
    attempt = attempt_of(scenario_of(tmp_path, text), tmp_path)
    assert attempt.verdict is Verdict.REFUSED


def test_nothing_compared_is_no_pass(tmp_path, monkeypatch):
    from harness.runtime import level_kernel

    monkeypatch.setitem(level_kernel._OPERATIONS, "indexer_backward", lambda _s, _c: iter(()))
    attempt = attempt_of(scenario_of(tmp_path, BACKWARD), tmp_path)
    assert attempt.verdict is Verdict.HARNESS_ERROR


def case_of(folder, call, **more):
    scenario = scenario_of(folder, call, **more)
    (case,) = cases(scenario)
    return call_case(scenario, case.sources, case.spec.sequences[0])


def test_edits_reach_the_kernel_and_leave_the_reference_with_keys_alone(tmp_path):
    case = case_of(
        tmp_path, BACKWARD + ", edits: [{row: 1, slot: 3, id: 40}, {row: 2, slot: 0, id: -1}]"
    )
    assert int(case.ids[0, 1, 3]) == 40 and int(case.ids[0, 2, 0]) == -1
    assert int(case.counted[0, 1, 3]) == -1 and int(case.counted[0, 2, 0]) == -1
    assert (case.selection[0, :, :20] >= 0).all() and (case.selection[0, :, 20:] == -1).all()
    assert int((case.counted != case.selection).sum()) == 2


def test_slots_behind_a_length_do_not_count(tmp_path):
    case = case_of(tmp_path, TARGET + ", edits: [{row: 2, length: 10}]")
    assert case.lengths.tolist() == [[40, 40, 10, 40]]
    assert (case.counted[0, 2] >= 0).sum() == 10


def test_selected_keys_are_distinct_and_can_stand_at_the_back(tmp_path):
    case = case_of(tmp_path, "wrapper: sparse_attention_backward, keys: 40, placement: back", k=64)
    assert (case.selection[0, :, :24] == -1).all()
    rows = case.selection[0, :, 24:]
    assert all(len(set(row.tolist())) == 40 for row in rows)


def test_empty_slots_of_zero_hold_a_key_that_counts_nothing(tmp_path):
    case = case_of(tmp_path, BACKWARD + ", empty_slots: zero")
    assert (case.ids[0, :, 20:] == 0).all() and (case.counted[0, :, 20:] == -1).all()
    assert torch.equal(case.counted, case.selection)


@pytest.mark.parametrize(("empty", "negative", "zero"), [("minus_one", 432, 0), ("zero", 0, 432)])
def test_what_empty_slots_hold_is_in_the_record(tmp_path, empty, negative, zero):
    scenario = scenario_of(tmp_path, BACKWARD + f", empty_slots: {empty}")
    attempt = attempt_of(scenario, tmp_path)
    assert attempt.verdict is Verdict.PASS
    (call,) = attempt.calls
    picked = call.facts["slots"] - 432
    assert call.facts["slots"] == 4 * 128 and picked == 4 * 20
    assert call.facts["slots_negative"] == negative
    # Key 0 may be among the 20 that each row selects.
    assert zero <= call.facts["slots_key_zero"] <= zero + 4


FUSED = "wrapper: indexer_forward_top_k, keys: 200, offsets: given, position: 100"
DENSE = "wrapper: dense_attn_score_recompute, keys: 200, offsets: given, position: 61"


@pytest.mark.parametrize(
    ("call", "function", "spoil", "verdict"),
    [
        (FUSED, "call_forward_top_k", lambda out: out[0, 0, :1].fill_(150), "out_of_bounds"),
        (FUSED, "call_forward_top_k", lambda out: out[0, 0, :1].fill_(-1), "wrong_selection"),
        (DENSE, "call_dense_recompute", lambda out: out[0, 0, 90:91].fill_(0.0), "wrong_value"),
        (DENSE, "call_dense_recompute", lambda out: out[0, 0, 9:10].fill_(9.0), "wrong_value"),
    ],
)
def test_what_a_wrapper_returns_is_judged(tmp_path, monkeypatch, call, function, spoil, verdict):
    from harness.runtime import level_scoring_call

    healthy = attempt_of(scenario_of(tmp_path, call, k=64), tmp_path)
    assert healthy.verdict is Verdict.PASS, healthy.fault
    assert healthy.values
    original = getattr(level_scoring_call, function)

    def spoilt(*arguments):
        result = original(*arguments).clone()
        spoil(result)
        return result

    monkeypatch.setattr(level_scoring_call, function, spoilt)
    other = tmp_path / "spoilt"
    other.mkdir()
    attempt = attempt_of(scenario_of(other, call, k=64), other)
    assert attempt.verdict is Verdict(verdict)


def test_slots_that_move_are_counted_where_the_same_were_asked_for(tmp_path, monkeypatch):
    from harness.runtime import level_scoring_call

    call = "wrapper: indexer_top_k, keys: 1000, scores: constant, deterministic: true"
    healthy = attempt_of(scenario_of(tmp_path, call), tmp_path)
    assert healthy.verdict is Verdict.PASS, healthy.fault
    original, calls = level_scoring_call.call_top_k, []

    def turned(*arguments):
        calls.append(None)
        picks, values = original(*arguments)
        return picks.roll(len(calls), dims=1), values

    monkeypatch.setattr(level_scoring_call, "call_top_k", turned)
    other = tmp_path / "turned"
    other.mkdir()
    attempt = attempt_of(scenario_of(other, call), other)
    assert {value.name for value in attempt.values if not value.within} == {"repeated_slots"}
