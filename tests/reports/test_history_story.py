"""The nightly story: three planted ones told right, quarantine, owners, baselines."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
from click.testing import CliRunner
from history_samples import defect, entry, key, night
from sample_records import passing, released_defect, write_run

from harness.record.verdict import ExitCode, Outcome, Verdict
from launch.baseline import baseline as baseline_command
from launch.nightly import nightly
from reports.history.baselines import BaselineError, accept, baseline_of, beyond, read_baseline
from reports.history.night import night_of
from reports.history.owners import Owner, ownership
from reports.history.quarantine import Quarantined, QuarantineError, read_quarantine
from reports.history.store import append
from reports.history.story import Matter, Story, exit_code, last_good, tell
from reports.history.story_text import plain_lines, render_story
from reports.history.telling import tell_night
from reports.store import load_run


def told(*nights: object, **changes: object) -> Story:
    """Tell the last night against the one before it."""
    *earlier, tonight = nights
    return tell(tonight, last_good(earlier, tonight), {}, **changes)  # type: ignore[arg-type]


def test_nothing_happened_is_one_line() -> None:
    story = told(night(0, entry()), night(1, entry()))
    assert story.quiet
    assert list(plain_lines(story)) == ["nothing happened since 2026-01-01: 1 scenario"]


def test_a_release_moved_and_one_defect_appeared() -> None:
    before = night(0, entry("a"), entry("b"))
    tonight = night(
        1,
        defect("a", Outcome.UNEXPECTED),
        entry("b"),
        key=key(cudnn_frontend="1.32.0"),
        exit_code=1,
    )
    story = told(before, tonight)
    assert story.moved == {"cudnn_frontend": ("1.25.0", "1.32.0")}
    assert [(f.matter, f.scenario) for f in story.acting] == [(Matter.WRONG, "a")]
    assert story.acting[0].ownership.owner is Owner.CUDNN
    assert "alone moved" in story.acting[0].ownership.reason
    text = "\n".join(plain_lines(story))
    assert "environment moved: cudnn_frontend 1.25.0 -> 1.32.0" in text
    assert "whose key differs" in text
    assert exit_code(story, fail_on_regression=False) is ExitCode.CHECK_FAILED


def test_a_known_defect_got_fixed() -> None:
    fixed = entry("a", outcome=Outcome.FIXED)
    story = told(night(0, defect("a")), night(1, fixed, exit_code=1))
    assert [f.matter for f in story.acting] == [Matter.FIXED]
    assert "remove the known rule" in story.acting[0].text
    assert exit_code(story, fail_on_regression=False) is ExitCode.CHECK_FAILED


def test_matters_come_in_the_order_of_their_urgency() -> None:
    old = night(
        0,
        entry("path"),
        entry("crash"),
        entry("flip"),
        entry("hw", origin="hardware"),
        entry("lost"),
        entry("gone"),
    )
    tonight = night(
        1,
        entry("lost", metrics={"overlap": 0.9}),
        entry("hw"),
        entry("path", plan="unfused_bounds"),
        defect("flip"),
        entry("crash", verdict=Verdict.CRASH, outcome=Outcome.UNEXPECTED, fault="crash on rank 1"),
        exit_code=4,
    )
    story = told(old, tonight)
    assert [f.matter for f in story.findings] == [
        Matter.FAULT,
        Matter.FLIPPED,
        Matter.PATH,
        Matter.MODELLED,
        Matter.LOST,
        Matter.GONE,
    ]
    assert exit_code(story, fail_on_regression=False) is ExitCode.FAULT


def test_a_partial_night_says_so_and_is_no_reference() -> None:
    partial = night(1, entry("a"), partial=("b",), num_asked=2)
    story = told(night(0, entry("a"), entry("b")), partial)
    assert not story.quiet
    assert "a partial night: 1 of 2 were not judged" in story.headline
    assert not any(f.matter is Matter.GONE for f in story.findings)
    good = night(0, entry("a"), entry("b"))
    assert last_good([good, partial], night(2, entry("a"))) is good


def test_the_last_good_night_of_the_same_key_is_preferred() -> None:
    same = night(0, entry())
    other = night(1, entry(), key=key(torch="9"))
    bad = night(2, defect(outcome=Outcome.UNEXPECTED), exit_code=1)
    tonight = night(3, entry())
    assert last_good([same, other, bad], tonight) is same
    assert last_good([other, bad], tonight) is other
    assert last_good([bad], tonight) is None


def test_a_slower_night_is_a_regression_of_the_history(tmp_path: Path) -> None:
    for day in range(10):
        append(tmp_path, night(day, entry(metrics={"time_s": 1.0 + 0.001 * (day % 3)})))
    for day in range(10, 13):
        slow = night(day, entry(metrics={"time_s": 2.0}))
        append(tmp_path, slow)
        story = tell_night(tmp_path, slow, index_path=tmp_path / "i").story
    assert [f.matter for f in story.acting] == [Matter.SLOWER]
    assert exit_code(story, fail_on_regression=True) is ExitCode.REGRESSION
    assert exit_code(story, fail_on_regression=False) is ExitCode.OK


QUARANTINE = Quarantined(
    scenario="causal/*[cp4]",
    owner="kernel team",
    link="https://example.org/1",
    reason="waits for a driver",
    expires=date(2026, 1, 5),
)


@pytest.mark.parametrize(("day", "matter"), [(1, Matter.QUARANTINED), (9, Matter.EXPIRED)])
def test_quarantine_excuses_until_its_date(day: int, matter: Matter) -> None:
    tonight = night(day, defect(outcome=Outcome.UNEXPECTED), exit_code=1)
    story = told(night(0, entry()), tonight, quarantine=[QUARANTINE])
    assert [f.matter for f in story.findings] == [matter]
    failed = exit_code(story, fail_on_regression=False) is not ExitCode.OK
    assert failed is (matter is Matter.EXPIRED)


def test_an_expired_entry_fails_even_where_all_is_well() -> None:
    story = told(night(0, entry()), night(9, entry()), quarantine=[QUARANTINE])
    assert [f.matter for f in story.acting] == [Matter.EXPIRED]


def test_a_quarantine_file_is_checked_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "quarantine.yaml"
    good = "{scenario: a, owner: o, link: https://x, reason: r, expires: 2026-12-31}"
    path.write_text(f"quarantine:\n  - {good}\n")
    assert read_quarantine(path)[0].expires == date(2026, 12, 31)
    path.write_text(
        "quarantine:\n"
        "  - {scenario: a, owner: o, link: l, reason: r}\n"
        "  - {scenario: a, owner: o, link: l, reason: r, expires: soon}\n"
        "  - {scenario: a, owner: o, link: l, reason: r, expires: 2026-12-31, until: x}\n"
    )
    with pytest.raises(QuarantineError) as caught:
        read_quarantine(path)
    lines = str(caught.value).splitlines()
    assert len(lines) == 3
    assert f"{path}:2:" in lines[0]
    assert "expires missing" in lines[0]
    assert "expected a day" in lines[1]
    assert "unknown key until" in lines[2]


@pytest.mark.parametrize(
    ("changes", "moved", "owner"),
    [
        ({"verdict": Verdict.INFRASTRUCTURE}, {"nccl": ("1", "2")}, Owner.INFRASTRUCTURE),
        ({"verdict": Verdict.WRONG_MEMO}, {}, Owner.MEGATRON),
        ({"verdict": Verdict.HANG}, {}, Owner.NCCL),
        ({"verdict": Verdict.HANG}, {"megatron_core": ("1", "2")}, Owner.MEGATRON),
        ({"verdict": Verdict.MEMORY_FAULT, "kernel": "flash_mla_sparse_fwd"}, {}, Owner.FLASH_MLA),
        ({"verdict": Verdict.MEMORY_FAULT, "kernel": "indexer_top_k"}, {}, Owner.CUDNN),
        ({"verdict": Verdict.WRONG_SELECTION}, {}, Owner.CUDNN),
        ({"verdict": Verdict.WRONG_SELECTION, "origin": "torch"}, {}, Owner.MEGATRON),
        ({"verdict": Verdict.HARNESS_ERROR}, {"cudnn": ("1", "2")}, Owner.HARNESS),
    ],
)
def test_owners(
    changes: dict[str, object], moved: dict[str, tuple[str, str]], owner: Owner
) -> None:
    assert ownership(entry(**changes), moved).owner is owner


def test_a_baseline_changes_only_when_accepted(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [passing("a")])
    words = [str(run), "--store", str(tmp_path / "store")]
    shown = CliRunner().invoke(baseline_command, words, standalone_mode=False)
    assert shown.return_value == 1
    assert "absent -> 1" in shown.output
    assert read_baseline(tmp_path / "store", night_of(load_run(run)).key) is None
    accepted = CliRunner().invoke(baseline_command, [*words, "--accept"], standalone_mode=False)
    assert accepted.return_value == 0
    again = CliRunner().invoke(baseline_command, words, standalone_mode=False)
    assert again.return_value == 0
    assert "nothing differs" in again.output


def test_a_baseline_is_made_of_good_finite_nights_only(tmp_path: Path) -> None:
    with pytest.raises(BaselineError, match="exit code 1"):
        baseline_of(night(0, entry(), exit_code=1))
    with pytest.raises(BaselineError, match="finite"):
        baseline_of(night(0, entry(metrics={"time_s": float("inf")})))
    good = baseline_of(night(0, entry()))
    path = accept(tmp_path, good)
    path.write_text(path.read_text().replace('"time_s": 1.0', '"time_s": NaN'))
    with pytest.raises(BaselineError, match="finite"):
        read_baseline(tmp_path, good.key)


def test_numbers_beyond_the_baseline_are_told() -> None:
    accepted = baseline_of(night(0, entry(metrics={"time_s": 1.0, "overlap": 1.0})))
    same = night(1, entry(metrics={"time_s": 1.1, "overlap": 1.0}))
    assert beyond(accepted, same) == ()
    worse = night(1, entry(metrics={"time_s": 1.5, "overlap": 0.5}))
    assert {item.metric for item in beyond(accepted, worse)} == {"time_s", "overlap"}


def test_the_command_tells_runs_that_are_there(tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    write_run(tmp_path / "a", [passing("s"), passing("t")], started_at="2026-01-01T00:00:00.000Z")
    write_run(
        tmp_path / "b", [released_defect("s"), passing("t")], started_at="2026-01-02T00:00:00.000Z"
    )
    runner = CliRunner(env={"XDG_CACHE_HOME": str(tmp_path / "cache")})
    first = runner.invoke(nightly, ["--run", str(tmp_path / "a"), "--store", store])
    assert "first night of this history" in first.output
    second = runner.invoke(nightly, ["--run", str(tmp_path / "b"), "--store", store])
    assert "flipped verdict: s: pass (expected) -> wrong_selection (known)" in second.output


def test_markdown_keeps_hostile_text_as_text() -> None:
    from sample_parts import HOSTILE

    tonight = night(1, defect(HOSTILE, Outcome.UNEXPECTED), exit_code=1)
    text = render_story(told(night(0, entry(HOSTILE)), tonight))
    assert "<script>" not in text
    assert "\x1b" not in text


def test_a_run_without_its_record_is_no_night(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [passing()])
    (run / "run.json").unlink()
    with pytest.raises(ValueError, match=r"run\.json"):
        night_of(load_run(run))


def test_what_never_ran_leaves_no_numbers(tmp_path: Path) -> None:
    from sample_records import not_run

    made = night_of(load_run(write_run(tmp_path / "run", [not_run(), passing()])))
    numbers = {e.id: e.metrics for e in made.entries}
    assert numbers[not_run().id] == {}
    assert numbers[passing().id]["overlap"] == 1.0
    assert replace(made, exit_code=0).good
