from __future__ import annotations

from dataclasses import replace

import pytest
from sample_parts import scenario
from sample_records import fixed, not_run, passing, released_defect, run_record

from harness.record.codec import to_jsonable
from harness.record.result import ScenarioResult
from harness.scenario.spec import Published
from reports.console import summary_text
from reports.markdown import render_markdown
from reports.published import published, published_text
from reports.summary import summarise
from reports.tables import published_table

FIGURE = Published(
    what="overlap without offsets",
    value="0.02 to 0.25",
    link="https://github.com/NVIDIA/Megatron-LM/pull/6206",
)
TEXT = (
    "published: overlap without offsets: 0.02 to 0.25 "
    "(https://github.com/NVIDIA/Megatron-LM/pull/6206)"
)


def with_figure(item: ScenarioResult) -> ScenarioResult:
    return replace(item, scenario=to_jsonable(replace(scenario(item.id), published=(FIGURE,))))


def test_a_figure_is_shown_below_ours_on_the_console() -> None:
    for item in (passing(), released_defect(), fixed(), not_run()):
        for results, shown in (([item], 0), ([with_figure(item)], 1)):
            lines = summary_text(summarise(run_record(results), results)).splitlines()
            assert [line.strip() for line in lines].count(TEXT) == shown
    results = [with_figure(passing())]
    lines = [x.strip() for x in summary_text(summarise(run_record(results), results)).splitlines()]
    assert lines[lines.index(TEXT) - 1].startswith("strict ")


def test_the_report_has_a_table_of_figures_beside_ours() -> None:
    results = [with_figure(passing()), released_defect(), with_figure(not_run())]
    summary = summarise(run_record(results), results)
    rows = published_table(summary).rows
    assert [row[:4] for row in rows] == [
        (not_run().id, "not_run", "-", "-"),
        (passing().id, "pass", "1.0000", "0.9990"),
    ]
    assert all(row[4:] == (FIGURE.what, FIGURE.value, FIGURE.link) for row in rows)
    page = render_markdown(summary)
    assert "**Beside figures that others published**" in page
    assert f"| 0.02 to 0.25 | <{FIGURE.link}> |" in page
    assert "Beside figures" not in render_markdown(summarise(None, [passing()]))


def test_a_block_of_the_report_names_the_figure() -> None:
    results = [with_figure(released_defect())]
    page = render_markdown(summarise(run_record(results), results))
    assert f"- **published**: overlap without offsets: 0.02 to 0.25 (<{FIGURE.link}>)" in page
    assert "- **window**: cp_rank 3: 48 of 64 rows short" in page


@pytest.mark.parametrize("stored", ["nothing", None, "text", [], [1], [{"what": "x"}]])
def test_records_without_figures_or_with_odd_ones_are_still_read(stored: object) -> None:
    item = passing()
    plain = {key: value for key, value in item.scenario.items() if key != "published"}
    if stored != "nothing":
        plain["published"] = stored
    assert published(replace(item, scenario=plain)) == ()


def test_text() -> None:
    assert f"published: {published_text(FIGURE)}" == TEXT
