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
model: {{base: small, num_attention_heads: {heads}, dsa_indexer_n_heads: 64, dsa_indexer_topk: {k}}}
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


def scenario_of(folder, call, *, defects="none", arch="sm100", heads=64, rows="4", k=128):
    path = folder / "case.yaml"
    text = SCENARIO.format(call=call, defects=defects, arch=arch, heads=heads, rows=rows, k=k)
    path.write_text(text)
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
}
WRONG = {
    "d550": {"grad.q_indexer.batch0", "grad.weights.batch0", "grad.k_indexer.batch1"},
    "unzeroed_dk": {"grad.k_indexer"},
    "d384": {"grad.query", "grad.key"},
    "d298": {"grad.key"},
    "d1549": {"score_target"},
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
