from __future__ import annotations

from dataclasses import replace

import pytest
from sample_parts import LINK, MODELLED, attempt, behaviour, path, result, selection, stats
from sample_records import (
    ALL,
    crash,
    fixed,
    hang,
    hostile,
    memory_fault,
    not_run,
    passing,
    released_defect,
    run_record,
    wrong_path,
    wrong_selection,
)

from harness.record.evidence import NoteEvidence
from harness.record.result import Proof, ScenarioResult
from harness.record.selection import OverlapSlice
from harness.record.verdict import Outcome, Verdict
from reports.findings import findings, known_rule, known_text
from reports.overlap import (
    behaviour_totals,
    parts_by,
    rank_overlaps,
    spread,
    stages,
    worst,
    worst_row,
)
from reports.proof import (
    HARDWARE_MEANING,
    MODELLED_MEANING,
    NO_MEMO,
    NOTHING_MEANING,
    UNWATCHED_MEMO,
    kernels_text,
    run_proof,
)
from reports.summary import Need, missing_text, need_of, summarise, totals_line


def texts(item: ScenarioResult) -> dict[str, str]:
    return {finding.label: finding.text for finding in findings(item)}


def test_most_urgent_first() -> None:
    results = [maker() for maker in ALL if maker is not hostile]
    summary = summarise(run_record(results), results)
    assert [scenario.need for scenario in summary.scenarios] == [
        *[Need.FAULT] * 3,
        *[Need.WRONG] * 2,
        Need.FIXED,
        Need.KNOWN,
        Need.NOT_RUN,
        Need.EXPECTED,
    ]
    verdicts = [scenario.result.verdict for scenario in summary.scenarios[:5]]
    assert verdicts == sorted(verdicts, key=lambda verdict: verdict.rank)
    assert len(summary.failing) == 6


def test_order_of_the_run_stays_within_a_need() -> None:
    results = [passing(f"p/{n}") for n in (3, 1, 2)] + [crash(f"c/{n}") for n in (2, 1)]
    summary = summarise(run_record(results), results)
    assert [s.result.id for s in summary.scenarios] == ["c/2", "c/1", "p/3", "p/1", "p/2"]


def test_a_harness_error_is_as_urgent_as_a_fault() -> None:
    broken = attempt(
        Verdict.HARNESS_ERROR,
        paths=(),
        notes=(NoteEvidence(topic="harness error", text="Traceback\n  x\nKeyError: 'a'\n"),),
    )
    item = result("a", [broken], Outcome.UNEXPECTED)
    assert need_of(item) is Need.FAULT
    assert texts(item)["error"] == "harness error: KeyError: 'a'"


def test_counts_and_totals() -> None:
    results = [passing("a"), passing("b"), wrong_selection(), crash(), not_run(), fixed()]
    summary = summarise(run_record(results), results)
    assert summary.outcomes == {
        Outcome.UNEXPECTED: 2,
        Outcome.FIXED: 1,
        Outcome.NOT_RUN: 1,
        Outcome.EXPECTED: 2,
    }
    assert totals_line(summary) == (
        "6 scenarios: 2 unexpected (1 crash, 1 wrong_selection), 1 fixed (1 pass), 1 not_run, "
        "2 expected (2 pass); 7.5 s in scenarios, 20.0 s from start to end"
    )


@pytest.mark.parametrize(
    ("makers", "code"),
    [
        ([passing, released_defect], 0),
        ([passing, wrong_selection], 1),
        ([passing, fixed], 1),
        ([passing, crash], 4),
        ([not_run], 5),
    ],
)
def test_exit_line(makers: list, code: int) -> None:
    results = [maker() for maker in makers]
    summary = summarise(run_record(results, exit_meaning=""), results)
    assert summary.exit_code == code
    assert summary.exit_line.startswith(f"exit code {code}: ")
    assert summary.warnings == ()


def test_a_run_that_is_not_over_has_no_exit_code() -> None:
    results = [passing("a")]
    record = run_record(results, scenario_ids=("a", "b", "c"), exit_code=None, finished_at=None)
    summary = summarise(record, results)
    assert summary.exit_code is None
    assert summary.missing == ("b", "c")
    assert summary.exit_line == (
        "exit code unknown: the run is not over, or was killed (1 of 3 scenarios have a result)"
    )
    assert totals_line(summary).startswith("3 scenarios: 1 expected (1 pass), 2 without a result")


def test_why_a_scenario_has_no_result() -> None:
    def why(code: int | None, *warnings: str) -> str:
        record = run_record([passing()], scenario_ids=(passing().id, "lost"), exit_code=code)
        return missing_text(summarise(record, [passing()], warnings=warnings), "lost")

    assert why(None) == "no result: the run did not come to it"
    assert why(130) == "no result: the run did not come to it"
    assert why(0) == "no result: results/lost.json is not there"
    cut = "results/lost.json: empty; the write did not finish"
    assert why(0, cut) == f"no result: {cut}"
    assert why(None, cut) == f"no result: {cut}"


def test_without_a_run_record_the_code_is_not_vouched_for() -> None:
    summary = summarise(None, [crash()])
    assert summary.exit_code is None
    assert summary.exit_line.startswith("exit code unknown: run.json is missing")
    assert "make it 4" in summary.exit_line


def test_a_code_that_the_results_do_not_bear_out_is_told() -> None:
    results = [passing(), crash()]
    told = summarise(run_record(results, exit_code=0), results)
    assert told.warnings == ("run.json says exit code 0, the results make it 4",)
    assert summarise(run_record(results), results).warnings == ()
    # Codes of their own kind, and runs that lost results, are not second-guessed.
    assert summarise(run_record(results, exit_code=6), results).warnings == ()
    assert summarise(run_record(results), results[:1]).warnings == ()


def test_unknown_exit_codes_are_shown() -> None:
    record = run_record([passing()], exit_code=77, exit_meaning="")
    assert summarise(record, [passing()]).exit_line == (
        "exit code 77: not a code of this harness version"
    )


def test_overlap_is_the_least_over_seeds() -> None:
    summary = summarise(None, [wrong_selection()])
    view = summary.scenarios[0]
    assert [rank.cp_rank for rank in view.ranks] == [0, 1, 2, 3]
    for rank in view.ranks:
        assert rank.overlap == 1 - 10 / 1024
        assert rank.strict == 1 - 11 / 1024
        assert [seed.overlap for seed in rank.seeds] == [1.0, 1 - 10 / 1024]
        assert rank.seeds_differ
        assert rank.total.rows == 128
    assert view.spread == "least of 2 seeds"
    healthy = summarise(None, [passing()]).scenarios[0]
    assert not any(rank.seeds_differ for rank in healthy.ranks)


def test_overlap_is_the_least_over_microbatches_of_one_seed() -> None:
    whole = selection(0, stats(tie=2))
    for picks in ((whole, selection(0, stats(below=5))), (selection(0, stats(below=5)), whole)):
        rank = rank_overlaps((picks[0], replace(picks[1], microbatch=1)), "final")[0]
        assert (rank.overlap, rank.strict) == (1 - 5 / 1024, 1 - 6 / 1024)
        assert len(rank.seeds) == 1
    rank = rank_overlaps((whole, replace(selection(0, stats(tie=0)), layer=1)), "final")[0]
    assert (rank.overlap, rank.strict) == (1.0, 1 - 2 / 1024)


def test_the_least_overlap_and_the_least_strict_may_be_of_different_ranks() -> None:
    picks = (selection(0, stats(tie=9)), selection(1, stats(tie=0, below=1)))
    wrong = attempt(Verdict.WRONG_SELECTION, selections=picks)
    view = summarise(None, [result("a", [wrong], Outcome.UNEXPECTED)]).scenarios[0]
    assert view.worst_rank is not None
    assert view.worst_rank.cp_rank == 1
    assert view.least_strict == 1 - 9 / 1024


def test_stages_are_kept_apart_and_final_is_shown() -> None:
    picks = (selection(0, stats(below=5), stage="wrapper"), selection(0, stats()))
    assert stages(picks) == ("final", "wrapper")
    assert rank_overlaps(picks, "final")[0].overlap == 1.0
    assert rank_overlaps(picks, "wrapper")[0].overlap < 1.0
    assert stages(picks[:1]) == ("wrapper",)
    assert rank_overlaps((), "final") == ()


def test_parts_are_added_up_by_name() -> None:
    picks = (selection(0, stats(below=5)), selection(1, stats(below=1)))
    halves = {part.name: part.stats for part in parts_by(picks, "final", lambda s: s.by_half)}
    assert (halves["front"].rows, halves["front"].below) == (64, 0)
    assert (halves["back"].rows, halves["back"].below) == (128, 6)
    moved = replace(picks[1], microbatch=1)
    by_pack = parts_by((picks[0], moved), "final", lambda s: s.by_sequence, per_microbatch=True)
    assert [part.name for part in by_pack] == [
        "microbatch 0 sequence 0",
        "microbatch 1 sequence 0",
    ]
    assert all(isinstance(part, OverlapSlice) for part in by_pack)


def test_spread_counts_what_varies() -> None:
    one = selection(0, stats())
    assert spread([one, selection(1, stats())]) == ""
    more = [one, replace(one, seed=1), replace(one, microbatch=1, layer=3)]
    assert spread(more) == "least of 2 seeds and 2 microbatches and 2 layers"


def test_worst_record_and_row() -> None:
    picks = (selection(0, stats()), selection(1, stats(below=3)), selection(2, stats(below=9)))
    found = worst(picks)
    assert found is picks[2]
    row = worst_row(picks)
    assert row is not None
    assert row[0] is picks[2]
    assert worst(picks[:1]) is None
    assert worst_row(picks[:1]) is None


def test_behaviour_must_explain_all_and_tell_something() -> None:
    whole = behaviour_totals([behaviour(0), behaviour(1)])[0]
    assert whole.holds
    assert (whole.rows, whole.rows_exhaustive_exact) == (128, 32)
    part = behaviour_totals([behaviour(0), behaviour(1, matching=40)])[0]
    assert not part.holds
    assert part.mismatch == (1, 5)
    mute = behaviour_totals([replace(behaviour(0), rows_telling=0)])[0]
    assert not mute.holds


def test_known_defect_in_one_line() -> None:
    item = released_defect()
    assert known_text(item) == (
        "picks match chunk_local_window on every row: rows exhaustive 64 of 64 exact, rows beyond "
        f"window 0; see {LINK}"
    )
    assert summarise(None, [item]).scenarios[0].known == known_text(item)
    assert summarise(None, [passing()]).scenarios[0].known == ""


def test_known_rule_must_fit_what_was_seen() -> None:
    item = released_defect()
    rule = known_rule(item)
    assert rule is not None
    assert rule.link == LINK
    unseen = replace(item, attempts=(replace(item.last, behaviours=()),))
    assert known_rule(unseen) is None
    assert known_text(unseen) == item.explanation
    assert known_rule(replace(item, outcome=Outcome.UNEXPECTED)) is None


def test_of_several_fitting_rules_the_one_named_when_judged_is_shown() -> None:
    item = released_defect()
    rules = item.scenario["known"]
    assert isinstance(rules, list)
    other = {**rules[0], "link": "https://example.org/other"}
    later = {**rules[0], "added_in_version_2": True}
    scenario = {**item.scenario, "known": [later, other, *rules]}
    rule = known_rule(replace(item, scenario=scenario))
    assert rule is not None
    assert rule.link == LINK
    unnamed = known_rule(replace(item, scenario=scenario, explanation=""))
    assert unnamed is not None
    assert unnamed.link == "https://example.org/other"
    assert known_rule(replace(item, scenario={})) is None


def test_findings_of_a_crash() -> None:
    found = texts(crash())
    assert found["expected"] == "pass"
    assert found["found"] == "crash"
    assert found["first fault"] == "global_rank 2 in phase score: ended by signal SIGSEGV"
    assert found["victims"] == "global_rank 0, 1, 3"
    assert "why" not in found
    assert "attempts" not in found


def test_findings_of_attempts_address_and_path() -> None:
    assert texts(hang())["attempts"] == "2 attempts, number 2 decides; the others: 1 hang"
    found = texts(memory_fault())
    assert found["exception"] == (
        "harness.kernels.addresses.AddressFault: address outside the operand"
    )
    assert found["address"] == (
        "indexer_top_k, operand lengths, row 4096, index 0: element offset 4096 is outside 0 to "
        "4095 (past_tensor)"
    )
    found = texts(wrong_path())
    assert found["found"] == "wrong_path, also wrong_value"
    assert found["path"].startswith("cp_rank 0..3: plan unfused_bounds (inferred), backend cudnn")
    assert "reason: one fused call per segment" in found["path"]
    assert "greatest relative difference nan" in found["worst value"]
    assert found["layout"].startswith("gathered_keys differs at cp_rank 1")


def test_wrong_path_without_any_path_says_so() -> None:
    bare = attempt(Verdict.WRONG_PATH, paths=())
    found = texts(result("a", [bare], Outcome.UNEXPECTED))
    assert found["path"] == "no path was proved on any rank"


def test_findings_of_a_wrong_selection() -> None:
    found = texts(wrong_selection())
    assert found["worst rank"] == (
        "cp_rank 0, microbatch 0, layer 0, seed 1, stage final: overlap 0.9902, strict 0.9893; of "
        "1024 due: 1013 exact, 1 tie, 10 below; largest gap 1.25"
    )
    assert found["worst row"] == (
        "cp_rank 0, microbatch 0, layer 0, seed 1, sequence 2, row 17, position 81, limit 82: "
        "wrong picks 3, 4; not picked 70, 71"
    )
    assert found["behaviour"] == (
        "picks match chunk_local_window on 40 of 64 rows only: rows exhaustive 16 of 16 exact, "
        "rows beyond window 0; first other row: cp_rank 0, row 5"
    )


def test_overlays_and_injected_faults_are_named() -> None:
    proof = Proof(overlays=("causal_offsets",), injected=("crash:1:score",))
    found = texts(result("a", [attempt(Verdict.PASS, proof=proof)], Outcome.FIXED))
    assert found["overlays"] == "causal_offsets"
    assert found["injected"] == "crash:1:score"


def test_kernels_are_always_labelled() -> None:
    assert kernels_text(Proof(kernels={"a": MODELLED, "b": MODELLED})) == MODELLED
    mixed = Proof(kernels={"t": "torch", "m": MODELLED, "h": "hardware"})
    assert kernels_text(mixed) == f"hardware (h) + {MODELLED} (m) + torch (t)"
    assert kernels_text(Proof()) == "not recorded"


def kernels(name: str, origin: str) -> ScenarioResult:
    return result(
        name, [attempt(Verdict.PASS, proof=Proof(kernels={"op": origin}))], Outcome.EXPECTED
    )


def test_what_a_run_proves() -> None:
    unwatched = UNWATCHED_MEMO
    assert run_proof([kernels("a", MODELLED)]).meaning == (MODELLED_MEANING, unwatched)
    assert run_proof([kernels("a", "hardware")]).meaning == (HARDWARE_MEANING, unwatched)
    both = run_proof([kernels("a", MODELLED), kernels("b", "hardware")])
    assert both.meaning == (HARDWARE_MEANING, MODELLED_MEANING, unwatched)
    assert list(both.kernels) == ["hardware", MODELLED]
    assert run_proof([kernels("a", "torch")]).meaning == (NOTHING_MEANING, unwatched)
    assert run_proof([not_run()]).meaning == (NOTHING_MEANING,)


def test_facts_on_which_scenarios_disagree_are_both_shown() -> None:
    def probed(name: str, value: bool) -> ScenarioResult:
        proof = Proof(facts={"passes_causal_offsets": value, "has_layout_memo": None})
        return result(name, [attempt(Verdict.PASS, proof=proof)], Outcome.EXPECTED)

    facts = run_proof([probed("a", False), probed("b", True)]).facts
    assert facts == {
        "has_layout_memo": "not probed",
        "passes_causal_offsets": "False or True",
    }


def test_a_fact_that_goes_with_the_release_names_it() -> None:
    def probed(release: str, value: bool) -> ScenarioResult:
        proof = Proof(kernels={"indexer_forward": release}, facts={"accepts_offsets": value})
        return result(release, [attempt(Verdict.PASS, proof=proof)], Outcome.EXPECTED)

    old = [probed(f"modelled 1.{minor}.0 sm100", False) for minor in range(20, 26)]
    facts = run_proof([*old, probed(MODELLED, True)]).facts
    assert facts["accepts_offsets"] == (
        "False (modelled 1.20.0 sm100; modelled 1.21.0 sm100; modelled 1.22.0 sm100; "
        f"modelled 1.23.0 sm100; 2 more), True ({MODELLED})"
    )


def test_nothing_is_claimed_of_a_memo_that_the_build_lacks() -> None:
    proof = Proof(kernels={"op": MODELLED}, facts={"has_layout_memo": False})
    lacking = result("a", [attempt(Verdict.PASS, proof=proof)], Outcome.EXPECTED)
    assert NO_MEMO in run_proof([lacking]).meaning
    assert UNWATCHED_MEMO in run_proof([lacking, passing()]).meaning


def test_time_of_the_whole_run_stands_beside_that_of_the_scenarios() -> None:
    def wall(**changes: object) -> float | None:
        return summarise(run_record([passing()], **changes), [passing()]).wall_s

    assert wall() == 20.0
    assert wall(finished_at=None) is None
    assert wall(started_at="yesterday") is None
    assert wall(finished_at="2026-05-01T10:00:20") is None
    assert summarise(None, [passing()]).wall_s is None
    assert totals_line(summarise(None, [passing()])).endswith("; 1.2 s in scenarios")


@pytest.mark.parametrize(
    ("state", "words"),
    [("killed", "the run was killed"), ("interrupted", "the run was interrupted")],
)
def test_how_a_run_ended_without_a_code_is_told(state: str, words: str) -> None:
    record = run_record([passing()], exit_code=None, finished_at=None, state=state)
    line = summarise(record, [passing()]).exit_line
    assert line == f"exit code unknown: {words} (1 of 1 scenario have a result)"


def test_plans_of_all_ranks_are_shown() -> None:
    both = attempt(Verdict.PASS, paths=(path(0), path(1, plan="packed_single")))
    view = summarise(None, [result("a", [both], Outcome.EXPECTED)]).scenarios[0]
    assert view.plan == "packed_single, packed_thd"
