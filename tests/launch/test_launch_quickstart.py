"""The quick start under a real torchrun: what it must show, and that it fails without its rules."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "planted"))

from planted_runs import Run, run  # noqa: E402

from harness.record.verdict import Outcome, Verdict  # noqa: E402

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(300)]

QUICKSTART = ROOT / "scenarios" / "quickstart"


@pytest.fixture(scope="module")
def four_ranks(tmp_path_factory) -> Run:
    return run(4, [QUICKSTART], tmp_path_factory.mktemp("runs"), "-k", "cp4")


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory) -> Run:
    return run(2, [QUICKSTART], tmp_path_factory.mktemp("runs"), "-k", "cp2 or cp32-single")


def strict_by_rank(result) -> dict[int, float]:
    """Greatest strict overlap of each CP rank over the seeds."""
    ranks: dict[int, float] = {}
    for selection in result.last.selections:
        if selection.stage == "final":
            overlap = selection.total.strict_overlap
            ranks[selection.cp_rank] = max(ranks.get(selection.cp_rank, 0.0), overlap)
    return ranks


def test_it_ends_with_success_and_says_so(four_ranks):
    assert four_ranks.status == 0, four_ranks.output
    assert four_ranks.record.exit_code == 0
    assert "exit code 0" in four_ranks.output
    assert "overlap" in four_ranks.output
    assert "strict" in four_ranks.output


def test_the_modelled_1_32_is_known_and_everything_else_right(four_ranks, two_ranks):
    results = four_ranks.results | two_ranks.results
    assert len(results) == 14
    for scenario_id, result in results.items():
        if "1.32.0" in scenario_id:
            assert result.outcome is Outcome.KNOWN, result.explanation
            assert result.verdict is Verdict.WRONG_SELECTION
        else:
            assert result.verdict is Verdict.PASS, result.explanation
            assert set(strict_by_rank(result).values()) == {1.0}


def test_size_of_the_released_defect_at_cp_4(four_ranks):
    defects = {i: r for i, r in four_ranks.results.items() if "1.32.0" in i}
    assert len(defects) == 2
    for result in defects.values():
        strict = strict_by_rank(result)
        assert strict.pop(0) < 0.60
        assert len(strict) == 3
        assert max(strict.values()) < 0.30


def test_invariants_of_the_released_defect_are_in_the_record(four_ranks, two_ranks):
    results = four_ranks.results | two_ranks.results
    for scenario_id, result in results.items():
        if "1.32.0" not in scenario_id:
            continue
        attempt = result.last
        assert attempt.behaviours
        for behaviour in attempt.behaviours:
            assert behaviour.name == "chunk_local_window"
            assert behaviour.rows_exhaustive_exact == behaviour.rows_exhaustive
            assert behaviour.rows_beyond_window == 0
            assert behaviour.holds
        # The rank 0 front half is right: the only chunk whose offset is 0.
        for selection in attempt.selections:
            if selection.cp_rank == 0 and selection.stage == "final":
                front = next(s for s in selection.by_half if s.name == "front")
                assert front.stats.num_wrong == 0


def test_the_record_says_what_the_run_proves(two_ranks):
    for result in two_ranks.results.values():
        proof = result.last.proof
        if "cudnn" in result.id:
            assert set(proof.kernels) >= {"indexer_forward", "indexer_top_k"}
            assert all(value.startswith("modelled 1.") for value in proof.kernels.values())
            assert "tensors answer is_cuda" in proof.shims
        assert proof.facts["passes_causal_offsets"] is False


def test_without_the_known_rule_the_run_fails(tmp_path):
    text = (QUICKSTART / "cudnn-single.yaml").read_text()
    path = tmp_path / "cudnn-single.yaml"
    path.write_text(text.partition("known:")[0])
    done = run(2, [path], tmp_path / "runs", "-k", "1.32.0 and cp2")
    assert done.status != 0
    assert done.record.exit_code == 1
    (result,) = done.results.values()
    assert (result.verdict, result.outcome) == (Verdict.WRONG_SELECTION, Outcome.UNEXPECTED)
    assert "rerun" in done.output
