"""Searching with an evaluator that answers by a rule: draws, endings, and what is saved."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
from repro_fakes import Fake, crashed, missing, passed, scenario

from harness.record.evidence import NEVER_STRUCK, NoteEvidence
from harness.record.verdict import ExitCode, Verdict
from harness.repro.search import Search, draw_each
from harness.repro.search_histories import Ranges, ranks_needed, searched, sound
from harness.repro.search_report import search_exit_code, search_lines, write_search
from harness.scenario.loader import load
from harness.scenario.search_spec import SearchSpec
from harness.scenario.spec import ExpectSpec, MicrobatchSpec, ParallelSpec, TrainingSpec

BASE = scenario(
    parallel=ParallelSpec(context_parallel_size=2),
    microbatches=(MicrobatchSpec(sequences=(40, 24)),),
)
COUNT = 60


def drawn(*bases, seed=0, count=COUNT):
    fake = Fake(lambda case, before: passed())
    search = Search(bases=bases, evaluator=fake, seed=seed, most=count, budget_s=600.0)
    return search.run(), fake.seen


def packs_of(histories):
    return [pack for history in histories for pack in history.microbatches]


def test_equal_seeds_give_equal_histories_in_equal_order():
    first, histories = drawn(BASE)
    again, same = drawn(BASE)
    assert histories == same and first.order == again.order
    other, others = drawn(BASE, seed=1)
    assert others != histories and other.order != first.order
    assert first.histories == COUNT and first.ending == "histories"
    assert len({history.content_hash for history in histories}) == COUNT


def test_histories_are_sound_and_within_the_ranges():
    _, histories = drawn(BASE)
    assert all(sound(history) for history in histories)
    packs = packs_of(histories)
    assert max(len(history.microbatches) for history in histories) == 3
    assert max(len(pack.sequences) for pack in packs) <= 6
    assert max(sum(pack.sequences) for pack in packs) <= 64
    assert max(max(pack.sequences) for pack in packs) <= 40
    assert all(any(pack.sequences) for pack in packs)
    assert all(pack.tail_padding == 0 for pack in packs)
    assert {history.parallel for history in histories} == {BASE.parallel}


def test_draws_reach_what_layouts_fail_on():
    _, histories = drawn(BASE)
    packs = packs_of(histories)
    reached = Counter(
        {
            "empty first": sum(p.sequences[0] == 0 for p in packs),
            "empty last": sum(p.sequences[-1] == 0 for p in packs),
            "one sequence": sum(len(p.sequences) == 1 for p in packs),
            "one token": sum(1 in p.sequences for p in packs),
            "no multiple": sum(any(n % 4 for n in p.sequences) for p in packs),
            "more padding": sum(p.padded != "auto" for p in packs),
            "full": sum(sum(p.sequences) == 64 for p in packs),
            "several": sum(len(h.microbatches) > 1 for h in histories),
        }
    )
    assert min(reached.values()) >= 2, reached


@pytest.mark.parametrize(
    ("asked", "seen"),
    [
        (SearchSpec(zero_lengths=False), lambda p: 0 in p.sequences),
        (SearchSpec(padded=False), lambda p: p.padded != "auto"),
        (SearchSpec(sequences=2), lambda p: len(p.sequences) > 2),
        (SearchSpec(length=9), lambda p: max(p.sequences) > 9),
        (SearchSpec(tokens=30), lambda p: sum(p.sequences) > 30),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, SearchSpec) else "",
)
def test_ranges_narrow_the_draws(asked, seen):
    _, histories = drawn(replace(BASE, search=asked))
    assert not any(seen(pack) for pack in packs_of(histories))
    _, histories = drawn(BASE)
    assert any(seen(pack) for pack in packs_of(histories))


def test_ranges_widen_the_draws():
    asked = SearchSpec(tail_padding=True, all_empty=True, microbatches=5)
    _, histories = drawn(replace(BASE, search=asked))
    packs = packs_of(histories)
    assert any(pack.tail_padding for pack in packs)
    assert any(not any(pack.sequences) for pack in packs)
    assert max(len(history.microbatches) for history in histories) > 3


def test_a_schedule_is_drawn_where_there_is_a_backward():
    trained = replace(BASE, level="model", training=TrainingSpec(backward=True))
    _, histories = drawn(trained, count=100)
    schedules = [history.schedule for history in histories if history.schedule]
    assert len({s for s in schedules if len(s) >= 4}) >= 2
    _, histories = drawn(replace(BASE, level="model"))
    assert all(history.schedule is None for history in histories)


def test_dynamic_cp_draws_sizes_and_packs_side_by_side():
    dynamic = replace(
        BASE,
        parallel=ParallelSpec(context_parallel_size=2, dynamic_context_parallel=True),
        microbatches=(MicrobatchSpec(sequences=(40,), cp=1, beside=((24,),)),),
    )
    assert Ranges.of(dynamic).cp == (1, 2) and ranks_needed(dynamic) == 2
    assert ranks_needed(replace(dynamic, search=SearchSpec(cp=(1, 4)))) == 4
    _, histories = drawn(dynamic)
    packs = packs_of(histories)
    assert {pack.cp for pack in packs} == {1, 2}
    assert any(pack.beside for pack in packs)
    assert all(sound(history) for history in histories)


def test_unpacked_batches_stay_batches():
    batch = MicrobatchSpec(sequences=(32, 32), qkv_format="sbhd")
    _, histories = drawn(replace(BASE, microbatches=(batch,)), count=30)
    packs = packs_of(histories)
    assert all(len(set(pack.sequences)) == 1 for pack in packs)
    assert all(pack.sequences[0] % 4 == 0 for pack in packs)


def test_expectations_of_single_packs_are_not_asked_of_others():
    expect = ExpectSpec(plan="packed_thd", kernel_calls={"a": 1}, layout_builds_per_microbatch=1)
    kept = searched(replace(BASE, expect=expect)).expect
    assert kept == ExpectSpec(layout_builds_per_microbatch=1)


def faulty(case):
    return any(len(pack.sequences) == 3 for pack in case.microbatches)


def test_the_first_unexpected_verdict_ends_it_and_is_saved(tmp_path):
    fake = Fake(lambda case, before: crashed() if faulty(case) else passed())
    report = Search(bases=(BASE,), evaluator=fake, budget_s=600.0).run()
    assert report.ending == "found" and report.found.alone
    assert report.found.number == report.histories == len(fake.seen) - 1
    assert not any(faulty(case) for case in fake.seen[:-2])
    report = write_search(report, tmp_path, rerun="dsa-harness run --ranks 2")
    (loaded,) = load([tmp_path / "found.yaml"]).scenarios
    assert loaded.scenario.content_hash == report.found.scenario.content_hash
    assert loaded.scenario.microbatches == fake.seen[-1].microbatches
    assert loaded.scenario.id == f"case/large-found-0-{report.histories}"
    assert (tmp_path / "search.json").exists() and (tmp_path / "report.md").exists()
    text = "\n".join(search_lines(report, tmp_path))
    assert "crash (phase select, ValueError)" in text and "found.yaml" in text
    assert search_exit_code(report) is ExitCode.FAULT


def test_an_expected_or_known_fault_is_no_finding():
    base = replace(BASE, expect=ExpectSpec(verdict=Verdict.CRASH))
    fake = Fake(lambda case, before: crashed())
    report = Search(bases=(base,), evaluator=fake, most=20, budget_s=600.0).run()
    assert report.found is None and report.counts == {"expected crash": 20}
    assert search_exit_code(report) is ExitCode.OK


def test_a_fault_that_needs_what_ran_before_is_saved_with_it():
    def after_an_empty_entry(case, before):
        packs = [p.sequences for earlier in (*before, case) for p in earlier.microbatches]
        poisoned = any(0 in one and 1 in other for one, other in pairwise(packs))
        return crashed() if poisoned else passed()

    fake = Fake(after_an_empty_entry)
    report = Search(bases=(BASE,), evaluator=fake, seed=3, budget_s=600.0).run()
    assert report.ending == "found" and report.found.alone
    assert after_an_empty_entry(report.found.scenario, []).verdict is Verdict.CRASH


def test_a_fault_that_never_comes_back_is_said_to_come_and_go(tmp_path):
    calls = []

    def once(case, before):
        calls.append(case)
        return crashed() if len(calls) == 5 else passed()

    report = Search(bases=(BASE,), evaluator=Fake(once), budget_s=600.0).run()
    assert report.ending == "found" and not report.found.alone
    assert "comes and goes" in "\n".join(search_lines(report, tmp_path))


def test_time_signals_and_missing_capabilities_end_it():
    fake = Fake(lambda case, before: passed())
    assert Search(bases=(BASE,), evaluator=fake, budget_s=0.0).run().ending == "budget"
    asked = iter([False, False])
    stopped = Search(
        bases=(BASE,), evaluator=fake, budget_s=600.0, stop=lambda: next(asked, True)
    ).run()
    assert stopped.ending == "stopped" and stopped.histories == 2
    fake = Fake(lambda case, before: missing())
    report = Search(bases=(BASE,), evaluator=fake, budget_s=600.0, most=3).run()
    assert report.missing == "a GPU" and search_exit_code(report) is ExitCode.NOTHING_RAN


def test_histories_that_break_rules_are_passed_over_however_many(monkeypatch):
    drawn_so_far = iter(range(10**6))
    monkeypatch.setattr("harness.repro.search.sound", lambda case: next(drawn_so_far) % 50 == 49)
    report, histories = drawn(BASE, count=20)
    assert report.ending == "histories" and len(histories) == 20


def test_time_is_up_among_histories_that_break_rules_as_well(monkeypatch):
    monkeypatch.setattr("harness.repro.search.sound", lambda case: False)
    fake = Fake(lambda case, before: passed())
    assert Search(bases=(BASE,), evaluator=fake, budget_s=0.2).run().ending == "budget"


def test_key_lengths_are_within_the_ranges_too():
    pack = MicrobatchSpec(sequences=(16, 8), kv_sequences=(8, 16))
    narrow = SearchSpec(zero_lengths=False, tokens=20, padded=False)
    _, histories = drawn(replace(BASE, microbatches=(pack,), search=narrow))
    packs = packs_of(histories)
    assert all(len(pack.kv_sequences) == len(pack.sequences) for pack in packs)
    assert all(min(pack.kv_sequences) >= 1 for pack in packs)
    assert max(sum(pack.kv_sequences) for pack in packs) <= 20
    _, histories = drawn(replace(BASE, microbatches=(pack,)))
    assert all(any(pack.kv_sequences) for pack in packs_of(histories))
    assert any(0 in pack.kv_sequences for pack in packs_of(histories))


def test_a_pack_without_room_for_the_planted_fault_is_no_finding():
    planted = replace(
        BASE, inject=("past_limit@0:select",), expect=ExpectSpec(verdict=Verdict.OUT_OF_BOUNDS)
    )

    def spared(case, most):
        notes = tuple(
            NoteEvidence(topic=NEVER_STRUCK, text=f"past_limit: microbatch {place} has no row")
            for place in range(min(most, len(case.microbatches)))
        )
        return replace(passed(), notes=notes)

    fake = Fake(lambda case, before: spared(case, most=9))
    report = Search(bases=(planted,), evaluator=fake, most=5, budget_s=600.0).run()
    assert report.counts == {"unexpected pass (planted fault never struck)": 5}
    assert report.found is None
    # A fault that struck in one microbatch had to show.
    fake = Fake(lambda case, before: spared(case, most=len(case.microbatches) - 1))
    report = Search(bases=(planted,), evaluator=fake, most=5, budget_s=600.0).run()
    assert report.ending == "found"


def test_several_scenarios_of_a_file_are_drawn_from():
    other = replace(BASE, id="case/other", parallel=ParallelSpec(context_parallel_size=1))
    _, histories = drawn(BASE, other, count=40)
    assert {history.id for history in histories} == {"case/large", "case/other"}


def test_drawing_goes_on_until_it_is_ended():
    seen = []

    class EnoughError(BaseException):
        pass

    def visit(case):
        seen.append(case)
        if len(seen) == 3:
            raise EnoughError

    with pytest.raises(EnoughError):
        draw_each((BASE,), 0, visit)
