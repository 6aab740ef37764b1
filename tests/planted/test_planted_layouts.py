"""Planted faults of awkward layouts are found by the shipped scenarios, by rank and microbatch."""

from __future__ import annotations

import pytest
from hook_dispatchers import checkout
from planted_runs import ROOT, Run, run

from harness.production.locate import DSA_FOLDER, find_build
from harness.record.verdict import Outcome, Verdict
from reports.findings import findings

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(400)]

FOLDER = ROOT / "scenarios" / "layouts"
EMPTY, UNEVEN = "layouts/empty-entries[none-plan-none]", "layouts/uneven[attention-none-plan-none]"
TAIL = "layouts/tail[attention-none-plan-none]"
INJECTED = {EMPTY: "next_past_empty@2:select", UNEVEN: "key_on_padding@0:select"}


@pytest.fixture(scope="module")
def planted(tmp_path_factory) -> Run:
    """One run: two scenarios with a fault each, and one without."""
    paths = [FOLDER / f"{name}.yaml" for name in ("empty-entries", "uneven", "tail")]
    arguments = ["-k", "plan-none"]
    for name, kind in INJECTED.items():
        arguments += ["--inject", f"{kind}@{name}"]
    return run(4, paths, tmp_path_factory.mktemp("runs"), *arguments, timeout_s=360)


def struck(planted: Run, name: str) -> dict[tuple[int, int], int]:
    """(rank, microbatch) to foreign picks."""
    return {
        (s.global_rank, s.microbatch): s.total.foreign
        for s in planted.results[name].last.selections
        if s.stage == "final" and s.total.num_out_of_bounds
    }


def told(planted: Run, name: str) -> str:
    result = planted.results[name]
    assert (result.verdict, result.outcome) == (Verdict.OUT_OF_BOUNDS, Outcome.UNEXPECTED)
    return "\n".join(finding.text for finding in findings(result))


def test_a_key_from_behind_an_empty_entry_is_found(planted):
    # The entries at the front and at the end have nobody before or behind them.
    assert struck(planted, EMPTY) == {(2, 1): 1}
    text = told(planted, EMPTY)
    assert "cp_rank 2, microbatch 1, layer 1, seed 0, sequence" in text
    assert "1 foreign" in text
    notes = {n.text for n in planted.results[EMPTY].last.notes if "never struck" in n.topic}
    assert {text.split()[2] for text in notes} == {"0", "2", "3"}


def test_a_key_on_a_padding_row_is_found(planted):
    found = struck(planted, UNEVEN)
    assert set(found) == {(0, microbatch) for microbatch in (0, 1, 2)}
    assert set(found.values()) == {1}
    assert "cp_rank 0, microbatch" in told(planted, UNEVEN)


def test_the_healthy_twin_beside_them_passes(planted):
    result = planted.results[TAIL]
    assert (result.verdict, result.outcome) == (Verdict.PASS, Outcome.EXPECTED)


@pytest.mark.slow
def test_a_refusal_that_names_another_length_is_found(tmp_path):
    build = find_build().package
    text = (build / DSA_FOLDER / "dsa_layout.py").read_text(encoding="utf-8")
    told = 'f"seq_len={int(bad_divisible[0].item())}, cp_size={cp_size}"'
    assert text.count(told) == 1
    changed = text.replace(told, 'f"seq_len={int(seq_lens[0].item())}, cp_size={cp_size}"')
    root = checkout(tmp_path / "build", {"dsa_layout.py": changed})
    name = "layouts/refused-lengths[scorer-64+61]"
    path = FOLDER / "refused-lengths.yaml"
    done = run(1, [path], tmp_path / "runs", "-k", f"={name}", "--megatron", str(root))
    result = done.results[name]
    assert (result.verdict, result.outcome) == (Verdict.REFUSED, Outcome.UNEXPECTED)
    assert "expected that the text says seq_len=61" in result.explanation
    assert "got seq_len=64" in result.explanation
