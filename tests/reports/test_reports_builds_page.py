"""``docs/builds.md`` is written from records alone: what a run shows is what the page says."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from sample_parts import attempt, environment, path, result
from sample_records import write_run

from harness.record.deviation import DEVIATION_KINDS, Deviation
from harness.record.evidence import LayoutEvidence
from harness.record.memo import MemoEvidence, TableRequest
from harness.record.verdict import Outcome, Verdict
from reports.path_tables import path_tables

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "builds.md").read_text(encoding="utf-8")

SITE = {"global_rank": 0, "cp_rank": 0, "microbatch": 0, "layer": 1, "seed": 0}
ASKED = TableRequest(
    layer=1,
    site="DSAttention.forward",
    key="('positions_and_reorder', 2, 0)",
    geometry="cp_size=2",
    flags="query=False key=False",
    builds=1,
    sorts=1,
)
MEMO = MemoEvidence(
    global_rank=0,
    cp_rank=0,
    microbatch=0,
    seed=0,
    forward=1,
    has_memo=True,
    layers=2,
    requests=(ASKED, replace(ASKED, layer=2, builds=0)),
)
TOLD = replace(
    path(0),
    plan="packed_thd",
    plan_source="build",
    reason="several sequences",
    build_plan="packed_cp_multi",
    ran="packed_thd",
    right_plan="packed_thd",
    dispatched={"dispatch_attention": "tensor"},
    shares={"q": "q", "k": ""},
)
LAYOUT = LayoutEvidence(**SITE, table="starts", equal=True)


def tables():
    spec = importlib.util.spec_from_file_location("build_tables", DOCS / "build_tables.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    kept, sys.modules["build_tables"] = list(sys.path), module
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path[:] = kept
        del sys.modules["build_tables"]
    return module


@pytest.fixture
def page(tmp_path):
    def make(**changes) -> str:
        evidence = {"paths": (TOLD,), "memos": (MEMO,), "layouts": (LAYOUT,)} | changes
        results = [
            result(f"evidence/{kind}-one", [attempt(Verdict.PASS, **evidence)], Outcome.EXPECTED)
            for kind in ("plan", "memo", "layout")
        ]
        facts = environment(megatron_core="0.19.0", megatron_commit="2b3e3b70c2ae884d")
        folder = write_run(tmp_path / "run", results, environment=facts)
        module = tables()
        return module.updated(PAGE, module.builds_of([folder]))

    return make


def test_page_says_what_the_records_say(page):
    text = page()
    assert "2b3e3b70c2 (0.19.0)" in text
    assert "| `plan-one` | packed_thd | packed_thd |" in text
    assert "| `packed_cp_multi` | packed_thd | several sequences |" in text
    assert "| `memo-one` | 0 | 1 built, 1 reused in 2 layers, 1 sorts |" in text
    assert "| `layout-one` | 1 of 1 |" in text


def test_other_records_make_another_page(page):
    twice = replace(MEMO, requests=(ASKED, replace(ASKED, layer=2)))
    text = page(memos=(twice,), paths=(replace(TOLD, plan="packed_single"),))
    assert "2 built, 0 reused in 2 layers, 2 sorts" in text
    assert "| `plan-one` | packed_thd | packed_single |" in text


def test_a_lost_mark_and_a_run_without_record_are_errors(tmp_path):
    module = tables()
    with pytest.raises(ValueError, match="expected the marks"):
        module.updated(PAGE.replace("<!-- end of memo -->", ""), [])
    made = result("evidence/plan-x", [attempt(Verdict.PASS)], Outcome.EXPECTED)
    folder = write_run(tmp_path / "run", [made])
    (folder / "run.json").unlink()
    with pytest.raises(ValueError, match=r"no readable run\.json"):
        module.builds_of([folder])


def test_report_shows_plan_dispatch_memo_and_deviations():
    wrong = Deviation(
        verdict=Verdict.WRONG_PATH, kind="plan", text="plan a, expected b", global_rank=1
    )
    made = replace(
        attempt(Verdict.PASS, paths=(TOLD,), memos=(MEMO,), layouts=(LAYOUT,)), deviations=(wrong,)
    )
    shown = {table.title: table for table in path_tables(made)}
    assert shown["Deviations"].rows == (("wrong_path", "plan", "1", "plan a, expected b"),)
    assert shown["Scoring plan"].rows[0][2:5] == ("packed_thd", "packed_cp_multi", "packed_thd")
    assert "dispatch_attention tensor" in shown["Dispatch"].rows[0]
    assert "q q, k a copy" in shown["Dispatch"].rows[0]
    assert shown["Layout tables"].rows == (("0", "0", "yes", "2", "1", "1", "1", "1", "0"),)
    assert [row[-1] for row in shown["Layout memo"].rows] == ["built", "reused"]
    assert shown["Layout tables against the harness's own"].rows[0][:4] == ("starts", "0", "1", "1")


def test_every_kind_of_deviation_is_explained():
    """On the page of verdicts, or on that of the optional collectors."""
    pages = (DOCS / name for name in ("verdicts.md", "evidence.md"))
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    for kind in DEVIATION_KINDS:
        assert f"`{kind}`" in text, kind


def test_runs_of_one_build_are_joined_and_others_stand_beside(tmp_path):
    module = tables()
    folders = []
    for number, (name, commit) in enumerate(
        [("evidence/plan-a", None), ("evidence/plan-b", None), ("evidence/plan-a", "ab" * 20)]
    ):
        made = result(name, [attempt(Verdict.PASS)], Outcome.EXPECTED)
        facts = environment(megatron_core="0.19.2", megatron_commit=commit)
        folders.append(write_run(tmp_path / f"run{number}", [made], environment=facts))
    builds = module.builds_of(folders)
    assert [build.name for build in builds] == ["megatron-core 0.19.2", "ababababab (0.19.2)"]
    assert [set(build.results) for build in builds] == [
        {"evidence/plan-a", "evidence/plan-b"},
        {"evidence/plan-a"},
    ]


def test_files_of_a_folder_are_counted_and_what_runs_lack_stays(tmp_path):
    module = tables()
    good = result("history/a[cp1]", [attempt(Verdict.PASS)], Outcome.EXPECTED)
    known = result("history/a[cp2]", [attempt(Verdict.WRONG_PATH)], Outcome.KNOWN)
    other = result("history/b", [attempt(Verdict.WRONG_PATH)], Outcome.UNEXPECTED)
    folder = write_run(tmp_path / "run", [good, known, other])
    text = module.updated(PAGE, module.builds_of([folder]))
    assert "| `a` | 1 known wrong_path, 1 pass |" in text
    assert "| `b` | unexpected wrong_path |" in text

    def between(page: str, name: str) -> str:
        return page.partition(f"<!-- {name}: generated -->")[2].partition("<!-- end")[0]

    for kept in ("plans", "memo", "layouts", "dynamic_cp"):
        assert between(text, kept) == between(PAGE, kept)
