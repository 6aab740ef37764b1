"""Two runs beside each other: only what differs, and on the right side."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from sample_parts import HOSTILE, attempt, rank, result
from sample_records import passing, released_defect, write_run

from harness.record.result import ScenarioResult
from harness.record.transfers import TransferEvidence, TransferSite
from harness.record.verdict import ExitCode, Outcome, Verdict, bisect_code
from launch.diff import DiffError, diff, targets
from reports.comparison.compare import compare, scenario_change
from reports.comparison.digest import Topic
from reports.comparison.text import headline, plain_lines, render_comparison
from reports.store import StoredRun, load_run


def stored(folder: Path, *results: ScenarioResult) -> StoredRun:
    write_run(folder, list(results))
    return load_run(folder)


def test_equal_runs_have_nothing_to_show(tmp_path: Path) -> None:
    found = compare(stored(tmp_path / "a", passing()), stored(tmp_path / "b", passing()))
    assert found.equal
    assert found.environment == ()
    assert found.exit_code is ExitCode.OK
    assert headline(found).startswith("0 scenarios behaved differently; 1 alike")


def test_a_flipped_verdict_leads_with_its_numbers(tmp_path: Path) -> None:
    name = "causal/zigzag[cp4]"
    before = stored(tmp_path / "a", passing(name), passing("other"))
    after = stored(tmp_path / "b", released_defect(name), passing("other"))
    found = compare(before, after)
    assert found.exit_code is ExitCode.CHECK_FAILED
    assert [change.id for change in found.scenarios] == [name]
    assert found.scenarios[0].flipped
    changes = {(c.topic, c.item): (c.before, c.after) for c in found.scenarios[0].behaviour}
    assert changes["verdict", "verdict"] == ("pass", "wrong_selection")
    assert changes["overlap", "cp_rank 3"][0].startswith("1.0000")
    assert not changes["overlap", "cp_rank 3"][1].startswith("1.0000")
    assert found.num_same == 1


def test_moved_facts_are_environment_and_no_behaviour() -> None:
    before = passing()
    last = before.last
    moved = replace(last.proof, facts={**last.proof.facts, "cudnn_frontend": "9.9.9"})
    after = replace(before, attempts=(replace(last, proof=moved),))
    change = scenario_change(before, after)
    assert change.behaviour == ()
    assert ("fact", "cudnn_frontend") in {(c.topic, c.item) for c in change.environment}


def test_moved_versions_of_the_run_are_environment(tmp_path: Path) -> None:
    before = stored(tmp_path / "a", passing())
    after = stored(tmp_path / "b", passing())
    assert after.record is not None
    environment = replace(
        after.record.environment,
        megatron_core="0.20.0",
        variables={**after.record.environment.variables, "TORCHELASTIC_RUN_ID": "xyz"},
    )
    after = replace(after, record=replace(after.record, environment=environment))
    found = compare(before, after)
    assert found.equal
    assert [change.item for change in found.environment] == ["megatron_core"]


@pytest.mark.parametrize(("factor", "shown"), [(1.2, False), (4.0, True)])
def test_time_is_shown_only_where_it_moved_much(factor: float, shown: bool) -> None:
    before = result("t", [replace(attempt(Verdict.PASS), duration_s=1.0)], Outcome.EXPECTED)
    after = replace(before, attempts=(replace(before.last, duration_s=factor),))
    topics = {change.topic for change in scenario_change(before, after).behaviour}
    assert (Topic.TIMINGS in topics) is shown


@pytest.mark.parametrize(("mib", "shown"), [(520, False), (1500, True)])
def test_memory_is_shown_only_where_it_moved_much(mib: int, shown: bool) -> None:
    base = attempt(Verdict.PASS)
    before = result(
        "m", [replace(base, ranks=(replace(rank(0), peak_rss_bytes=500 << 20),))], Outcome.EXPECTED
    )
    grown = replace(before.last, ranks=(replace(rank(0), peak_rss_bytes=mib << 20),))
    topics = {
        c.topic for c in scenario_change(before, replace(before, attempts=(grown,))).behaviour
    }
    assert (Topic.MEMORY in topics) is shown


def test_waits_of_the_host_are_held_against_each_other_layer_by_layer() -> None:
    read = TransferSite(
        kind="host_read", operation="item", site="a:1", function="f", phase="layout", count=1
    )
    layers = [
        TransferEvidence(
            global_rank=0, cp_rank=0, microbatch=0, layer=n, seed=0, how="device", sites=(read,)
        )
        for n in (1, 2)
    ]
    base = attempt(Verdict.PASS, transfers=tuple(layers))
    fewer = replace(base, transfers=(layers[0], replace(layers[1], sites=())))
    before = result("w", [base], Outcome.EXPECTED)
    (change,) = scenario_change(before, replace(before, attempts=(fewer,))).behaviour
    assert (change.topic, change.item) == (Topic.WAITS, "microbatch 0, layer 2")
    assert (change.before, change.after) == ("1 waits of the host", "0 waits of the host")


def test_scenarios_of_one_run_alone_are_listed(tmp_path: Path) -> None:
    found = compare(
        stored(tmp_path / "a", passing("old"), passing("both")),
        stored(tmp_path / "b", passing("both"), passing("new")),
    )
    assert (found.only_before, found.only_after) == (("old",), ("new",))
    assert not found.equal


def test_runs_that_share_nothing_are_no_success(tmp_path: Path) -> None:
    found = compare(stored(tmp_path / "a", passing("x")), stored(tmp_path / "b", passing("y")))
    assert found.exit_code is ExitCode.NOTHING_RAN


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    before = stored(tmp_path / "a", passing(HOSTILE))
    after = stored(tmp_path / "b", released_defect(HOSTILE))
    found = compare(before, after, names=(HOSTILE, "b"))
    plain = "\n".join(plain_lines(found))
    assert "\x1b" not in plain
    assert "\x07" not in plain
    markdown = render_comparison(found)
    assert "<script>" not in markdown
    assert "\x1b" not in markdown


def test_command_compares_two_folders(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [passing("s")])
    write_run(tmp_path / "b", [released_defect("s")])
    for form in ("console", "markdown"):
        words = [str(tmp_path / "a"), str(tmp_path / "b"), "--format", form]
        done = CliRunner().invoke(diff, words, standalone_mode=False)
        assert done.return_value == 1
        assert "wrong_selection" in done.output.replace("&#95;", "_")
    done = CliRunner().invoke(diff, [str(tmp_path / "a")] * 2, standalone_mode=False)
    assert done.return_value == 0


def test_a_folder_that_is_no_run_is_one_line(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [passing("s")])
    done = CliRunner().invoke(diff, [str(tmp_path / "a"), str(tmp_path / "none")])
    assert done.exit_code == 2
    assert "expected a run folder" in done.output
    assert "Traceback" not in done.output


def test_targets_are_two_of_one_kind() -> None:
    assert [t.words for t in targets(("installed", "/m"), (), ())] == [(), ("--megatron", "/m")]
    assert [t.words for t in targets((), ("1.25.0", "1.32.0"), ())] == [
        ("--modelled", "1.25.0"),
        ("--modelled", "1.32.0"),
    ]
    assert [t.words for t in targets((), (), ("causal_offsets",))] == [
        (),
        ("--overlay", "causal_offsets"),
    ]
    with pytest.raises(DiffError, match="one kind"):
        targets(("a", "b"), ("1.25.0", "1.32.0"), ())
    with pytest.raises(DiffError, match="found it 1 times"):
        targets(("a",), (), ())


def test_bisect_knows_good_bad_and_skip() -> None:
    codes = {code: int(bisect_code(code)) for code in ExitCode}
    assert codes[ExitCode.OK] == 0
    assert codes[ExitCode.CHECK_FAILED] == 1
    others = [codes[c] for c in codes if c not in (ExitCode.OK, ExitCode.CHECK_FAILED)]
    assert set(others) == {125}
