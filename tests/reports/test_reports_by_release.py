from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from sample_parts import attempt, path, result, scenario, selection, stats
from sample_records import not_run, passing, run_record

from harness.record.codec import to_jsonable
from harness.record.result import Proof, ScenarioResult
from harness.record.verdict import Outcome, Verdict
from harness.scenario.spec import KernelsSpec, ModelledKernels
from reports.by_release import (
    by_release,
    cell_text,
    families,
    family,
    release_line,
    release_of,
    short_names,
)
from reports.console import summary_text
from reports.markdown import render_markdown
from reports.summary import summarise
from reports.tables import MAX_FAMILIES, release_tables

RIGHT = (Verdict.PASS, Outcome.EXPECTED)
KNOWN = (Verdict.WRONG_SELECTION, Outcome.KNOWN)


def ran(
    name: str, origin: str, ending: tuple[Verdict, Outcome] = RIGHT, **kernels: str
) -> ScenarioResult:
    """A result whose kernels came from ``origin``."""
    verdict, outcome = ending
    proof = Proof(kernels={"indexer_forward": origin, **kernels})
    picks = (selection(0, stats(below=5 if verdict is Verdict.WRONG_SELECTION else 0)),)
    found = attempt(verdict, proof=proof, selections=picks, paths=(path(0),))
    return result(name, [found], outcome)


def asked(name: str, **kernels: object) -> ScenarioResult:
    """A result of which nothing is proved to have run."""
    spec = replace(scenario(name), kernels=KernelsSpec(**kernels))  # type: ignore[arg-type]
    item = not_run(name)
    found = replace(item.last, proof=Proof())
    return replace(item, attempts=(found,), scenario=to_jsonable(spec))


def lines_of(*results: ScenarioResult) -> list[str]:
    rows = by_release(results)
    return [release_line(row, short_names(families(rows))) for row in rows]


def test_one_line_and_one_row_per_release_and_architecture() -> None:
    results = [
        ran("r/zigzag[cudnn1.32.0-sm100]", "modelled 1.32.0 sm100", KNOWN),
        ran("r/zigzag[cudnn1.25.0-sm100]", "modelled 1.25.0 sm100"),
        ran("r/zigzag[cudnn1.25.0-sm90]", "modelled 1.25.0 sm90"),
        ran("r/plain[cudnn1.32.0]", "modelled 1.32.0 sm100"),
        ran("r/odd[cudnn1.32.0]", "modelled 1.32.0 sm100", KNOWN),
        ran("r/unfused", "torch"),
    ]
    assert lines_of(*results) == [
        "1.25.0 sm100: right in zigzag",
        "1.25.0 sm90: right in zigzag",
        "1.32.0 sm100: wrong_selection in odd, zigzag; right in plain",
    ]
    (table,) = release_tables(summarise(run_record(results), results))
    assert table.header == ("release", "arch", "odd", "plain", "zigzag")
    assert table.rows == (
        ("1.25.0", "sm100", "-", "-", "pass (expected)"),
        ("1.25.0", "sm90", "-", "-", "pass (expected)"),
        (
            "1.32.0",
            "sm100",
            "wrong_selection (known)",
            "pass (expected)",
            "wrong_selection (known)",
        ),
    )


def test_a_refusal_that_is_due_is_told_from_one_that_is_a_defect() -> None:
    due, defect = (Verdict.REFUSED, Outcome.EXPECTED), (Verdict.REFUSED, Outcome.KNOWN)
    assert lines_of(
        ran("a[1]", "modelled 1.32.0 sm100", due),
        ran("b[1]", "modelled 1.32.0 sm100", defect),
        ran("b[2]", "modelled 1.27.0 sm100"),
    ) == ["1.27.0 sm100: right in b", "1.32.0 sm100: refused as expected in a; refused in b"]


def test_documents_show_it_where_there_are_several_releases_only() -> None:
    one = [ran("a[1]", "modelled 1.32.0 sm100"), ran("b", "modelled 1.32.0 sm100", KNOWN)]
    two = [*one, ran("a[2]", "modelled 1.27.0 sm100")]
    for results, shown in ((one, False), (two, True)):
        summary = summarise(run_record(results), results)
        console, page = summary_text(summary), render_markdown(summary)
        assert ("\nby release:\n" in console) is shown
        assert ("  1.27.0 sm100: right in a\n" in console) is shown
        assert ("**By release**" in page) is shown
        assert ("| 1.27.0 | sm100 | pass (expected) | - |" in page) is shown
        assert bool(summary.releases) is shown


def test_two_architectures_of_one_release_are_compared() -> None:
    rows = by_release([ran("a", "modelled 1.32.0 sm90"), ran("a", "modelled 1.32.0 sm100")])
    assert [row.name for row in rows] == ["1.32.0 sm100", "1.32.0 sm90"]


def test_what_acts_is_marked_and_parts_are_counted() -> None:
    results = [
        ran("a[cp2]", "modelled 1.27.0 sm100", KNOWN),
        ran("a[cp4]", "modelled 1.27.0 sm100"),
        ran("a[cp8]", "modelled 1.27.0 sm100"),
        ran("b", "modelled 1.27.0 sm100", (Verdict.WRONG_SELECTION, Outcome.UNEXPECTED)),
        ran("c", "modelled 1.27.0 sm100", (Verdict.PASS, Outcome.FIXED)),
        ran("d", "modelled 1.28.0 sm100"),
    ]
    assert lines_of(*results) == [
        "1.27.0 sm100: wrong_selection in a (1 of 3); wrong_selection (unexpected) in b; right in "
        "a (2 of 3); pass (fixed) in c",
        "1.28.0 sm100: right in d",
    ]
    cell = by_release(results)[0].cells["a"]
    assert cell_text(cell) == "wrong_selection (known) x 1, pass (expected) x 2"
    assert cell_text(None) == cell_text(Counter()) == "-"


@pytest.mark.parametrize(
    ("kernels", "found"),
    [
        ({"dsa_kernel_backend": "cudnn"}, ("1.32.0", "sm100")),
        (
            {
                "dsa_kernel_backend": "cudnn",
                "modelled": ModelledKernels(cudnn_frontend="1.24.0", arch="sm90"),
            },
            ("1.24.0", "sm90"),
        ),
        ({"dsa_kernel_backend": "cudnn", "source": "hardware"}, None),
        ({"dsa_kernel_backend": "none"}, None),
    ],
)
def test_without_proof_the_scenario_says_which_release_was_meant(
    kernels: dict[str, object], found: tuple[str, str] | None
) -> None:
    assert release_of(asked("a", **kernels)) == found


@pytest.mark.parametrize(
    ("kernels", "found"),
    [
        ({"indexer_forward": "modelled 1.29.0 sm90"}, ("1.29.0", "sm90")),
        ({"a": "torch", "indexer_forward": "modelled 1.29.0 sm90"}, ("1.29.0", "sm90")),
        ({"indexer_forward": "hardware", "flash_mla": "modelled 1.29.0 sm90"}, None),
        ({"indexer_forward": "torch"}, None),
        ({"indexer_forward": "modelled"}, None),
    ],
)
def test_what_ran_decides(kernels: dict[str, str], found: tuple[str, str] | None) -> None:
    item = passing()
    item = replace(item, attempts=(replace(item.last, proof=Proof(kernels=kernels)),))
    assert release_of(item) == found


def test_an_unknown_release_comes_last_and_not_run_is_said() -> None:
    results = [
        ran("a", "modelled 9.9.0 sm100"),
        ran("a", "modelled 1.9.0 sm100"),
        ran("a", "modelled 1.24.1 sm100"),
        asked("b", dsa_kernel_backend="cudnn"),
    ]
    assert lines_of(*results) == [
        "1.24.1 sm100: right in a",
        "1.32.0 sm100: not_run in b",
        "1.9.0 sm100: right in a",
        "9.9.0 sm100: right in a",
    ]


def test_many_families_get_several_tables() -> None:
    results = [ran(f"f{n:02}[x]", "modelled 1.32.0 sm100") for n in range(MAX_FAMILIES + 2)]
    results.append(ran("f00[y]", "modelled 1.25.0 sm100"))
    first, second = release_tables(summarise(run_record(results), results))
    assert len(first.header) == MAX_FAMILIES + 2
    assert second.header == ("release", "arch", "f08", "f09")
    assert second.title == "By release, further scenarios"
    assert second.rows[0] == ("1.25.0", "sm100", "-", "-")


@pytest.mark.parametrize(
    ("names", "short"),
    [
        (["a/b", "a/c"], ["b", "c"]),
        (["a/b", "c"], ["a/b", "c"]),
        (["a/b"], ["b"]),
        (["a", "a/b"], ["a", "a/b"]),
        (["x/a/b", "x/a/c", "x/a/c/d"], ["b", "c", "c/d"]),
        ([], []),
    ],
)
def test_shared_folders_are_left_out(names: list[str], short: list[str]) -> None:
    assert list(short_names(names).values()) == short


def test_families() -> None:
    assert family("a/b[cp4-x]") == family("a/b") == "a/b"


def test_a_corrected_run_is_no_credit_to_the_bare_release() -> None:
    bare = ran("r/zigzag[cudnn1.32.0]", "modelled 1.32.0 sm100", KNOWN)
    other = ran("r/zigzag[cudnn1.25.0]", "modelled 1.25.0 sm100")
    corrected = ran("r/offsets[cudnn1.32.0]", "modelled 1.32.0 sm100")
    corrected = replace(corrected, scenario={**corrected.scenario, "overlays": ["causal_offsets"]})
    (newest,) = [line for line in lines_of(bare, other, corrected) if line.startswith("1.32.0")]
    assert "offsets with causal_offsets" in newest
    assert "zigzag with" not in newest
