from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest
from sample_parts import GPU, HOSTILE, MODELLED, attempt, environment, result, selection, stats
from sample_records import (
    ALL,
    crash,
    fixed,
    hostile,
    not_run,
    passing,
    released_defect,
    run_record,
    wrong_selection,
)

from harness.record.result import Proof, RunRecord, ScenarioResult
from harness.record.verdict import Outcome, Verdict
from reports.console import (
    MAX_DETAILED,
    build_text,
    print_summary,
    scenario_line,
    summary_text,
)
from reports.summary import summarise
from reports.text import visible


def text_of(results: list[ScenarioResult], record: RunRecord | None = None) -> str:
    return summary_text(summarise(record or run_record(results), results))


def test_a_passing_run_at_a_glance() -> None:
    lines = text_of([passing()]).splitlines()
    place = lines.index("expected    pass                 1.2 s  quickstart/zigzag[cp4]")
    assert lines[place + 1 : place + 5] == [
        "            plan packed_thd   kernels modelled 1.32.0 sm100",
        "            cp_rank       0       1       2       3   (least of 3 seeds)",
        "            overlap  1.0000  1.0000  1.0000  1.0000",
        "            strict   1.0000  0.9990  1.0000  0.9990",
    ]
    assert lines[0] == (
        "run 20260501-100000-sample: 4 ranks on 1 node, isolation scenario, 2026-05-01T10:00:00Z"
    )
    assert lines[-2:] == [
        "1 scenario: 1 expected (1 pass); 1.2 s in scenarios, 20.0 s from start to end",
        "exit code 0: all as expected or known",
    ]
    assert any(line.startswith("proves: Modelled kernels prove layout") for line in lines)
    assert "kernels: modelled 1.32.0 sm100: indexer_forward, indexer_top_k" in lines
    assert "shims: cuda_current_device" in lines
    assert not any(line.startswith("---") for line in lines)


def test_a_known_defect_is_explained_in_one_line() -> None:
    lines = text_of([released_defect()]).splitlines()
    explained = [line.strip() for line in lines if "known defect" in line]
    assert explained == [
        "known defect: picks match chunk_local_window on every row: rows exhaustive 64 of 64 "
        "exact, rows beyond window 0; see https://github.com/NVIDIA/cudnn-frontend/pull/316"
    ]
    assert lines[-1].startswith("exit code 0")
    assert not any(line.startswith("---") for line in lines)


@pytest.mark.parametrize("maker", [m for m in ALL if m not in (passing, released_defect, not_run)])
def test_a_failure_block_ends_with_the_rerun_command(maker: Callable[[], ScenarioResult]) -> None:
    item = maker()
    text = text_of([item])
    block = text[text.index("\n--- ") + 1 :].split("\n\n")[0].splitlines()
    assert block[0] == f"--- {item.outcome}: {item.verdict}: {visible(item.id)} ---"
    assert block[-1] == f"rerun       {visible(item.rerun)}"
    labels = [line[:12].strip() for line in block[1:]]
    assert labels[:3] == ["summary", "expected", "found"]
    assert "result" in labels


def test_blocks_of_a_crash_and_a_wrong_selection() -> None:
    text = text_of([crash(), wrong_selection()])
    for line in (
        "first fault global_rank 2 in phase score: ended by signal SIGSEGV",
        "victims     global_rank 0, 1, 3",
        "stacks      ranks/faults_crash/rank2.stacks",
        "scenario    scenarios/quickstart/packs.yaml:3",
    ):
        assert line in text.splitlines()
    assert "limit 82: wrong picks 3, 4; not picked 70, 71" in text
    assert text.index("--- unexpected: crash") < text.index("--- unexpected: wrong_selection")
    assert text.splitlines()[-1].startswith("exit code 4: ")


def test_the_first_stack_is_that_of_the_first_fault() -> None:
    item = crash()
    ranks = [replace(rank, stacks=f"ranks/{rank.global_rank}.stacks") for rank in item.last.ranks]
    item = replace(item, attempts=(replace(item.last, ranks=tuple(ranks)),))
    assert "stacks      ranks/2.stacks (and 3 of other ranks)" in text_of([item]).splitlines()


def test_not_run_names_what_is_missing() -> None:
    lines = text_of([not_run()]).splitlines()
    assert "            not run: missing a CUDA device" in lines
    assert lines[-1] == "exit code 5: nothing ran"


def test_seeds_and_stages_that_differ_get_rows() -> None:
    rows = [line.strip() for line in text_of([wrong_selection()]).splitlines()]
    assert "overlap seed 0  1.0000  1.0000  1.0000  1.0000" in rows
    assert "overlap seed 1  0.9902  0.9902  0.9902  0.9902" in rows
    picks = (selection(0, stats(below=512), stage="wrapper"), selection(0, stats()))
    item = result("a", [attempt(Verdict.WRONG_SELECTION, selections=picks)], Outcome.UNEXPECTED)
    rows = [line.strip() for line in text_of([item]).splitlines()]
    assert "wrapper  0.5000" in rows
    healthy = text_of([passing(), released_defect()])
    assert "overlap seed" not in healthy
    assert "wrapper" not in healthy


def many_ranks(ranks: list[int], wrong: int) -> ScenarioResult:
    picks = tuple(selection(n, stats(below=4 * (n == wrong))) for n in ranks)
    return result("a", [attempt(Verdict.WRONG_SELECTION, selections=picks)], Outcome.UNEXPECTED)


def test_many_ranks_are_drawn_together_where_they_agree() -> None:
    rows = [line.strip() for line in text_of([many_ranks(list(range(32)), 17)]).splitlines()]
    assert "cp_rank   0..16      17  18..31" in rows
    assert "overlap  1.0000  0.9961  1.0000" in rows
    few = [line.strip() for line in text_of([many_ranks([0, 15, 31], 15)]).splitlines()]
    assert "cp_rank       0      15      31" in few


def test_ranks_that_were_left_out_are_not_drawn_over() -> None:
    ranks = [0, 1, 2, 3, 4, 15, 16, 17, 31]
    rows = [line.strip() for line in text_of([many_ranks(ranks, 31)]).splitlines()]
    assert "cp_rank    0..4  15..17      31" in rows


def test_wide_tables_are_broken_after_eight_ranks() -> None:
    picks = tuple(selection(n, stats(below=n)) for n in range(10))
    item = result("a", [attempt(Verdict.WRONG_SELECTION, selections=picks)], Outcome.UNEXPECTED)
    lines = text_of([item]).splitlines()
    heads = [line for line in lines if line.strip().startswith("cp_rank ")]
    assert [head.split()[1:] for head in heads] == [[str(n) for n in range(8)], ["8", "9"]]
    assert all(len(head) <= 100 for head in heads)


def test_large_runs_show_one_line_for_each_pass_and_all_failures_in_full() -> None:
    results = [passing(f"p/{n}") for n in range(MAX_DETAILED)] + [crash()]
    text = text_of(results)
    assert text.count("cp_rank  ") == 0
    assert text.count("overlap 1.0000 strict 0.9990 (least of 4 cp_ranks)") == MAX_DETAILED
    assert "--- unexpected: crash" in text
    assert text_of(results[1:]).count("cp_rank  ") == MAX_DETAILED - 1


def test_scenario_line_stands_alone() -> None:
    assert scenario_line(passing()) == (
        "expected    pass                 1.2 s  quickstart/zigzag[cp4]  plan packed_thd  "
        f"kernels {MODELLED}  overlap 1.0000 strict 0.9990 (least of 4 cp_ranks)"
    )
    assert "overlap" not in scenario_line(crash())
    assert scenario_line(not_run()).endswith("missing a CUDA device")
    for maker in ALL:
        assert scenario_line(maker()).isprintable()


def test_overlays_and_injected_faults_stand_beside_the_scenario() -> None:
    proof = Proof(overlays=("causal_offsets",), injected=("crash:1:score",))
    lines = text_of(
        [result("a", [attempt(Verdict.PASS, proof=proof)], Outcome.EXPECTED)]
    ).splitlines()
    assert "            overlays causal_offsets" in lines
    assert "            injected crash:1:score" in lines


def test_build_line() -> None:
    assert build_text(environment()) == (
        "megatron-core 0.19.2 (0123456789ab), torch 2.13.0, cudnn-frontend 1.32.0, no GPU"
    )
    other = environment(
        megatron_core=None, megatron_commit="ff", megatron_dirty=True, cudnn_frontend=None,
        gpus=(GPU, GPU), transformer_engine="2.9",
    )  # fmt: skip
    assert build_text(other) == (
        "megatron-core not found (ff, with local changes), torch 2.13.0, cudnn-frontend not "
        "installed, transformer-engine 2.9, 2 x NVIDIA B200"
    )


def test_unfinished_runs_and_warnings_are_told() -> None:
    record = run_record(
        [passing()], scenario_ids=(passing().id, "b"), exit_code=None, notes=("T\n a\nOSError: x",)
    )
    summary = summarise(record, [passing()], warnings=["results/b.json: cut"])
    lines = summary_text(summary).splitlines()
    assert "warning: results/b.json: cut" in lines
    assert "note: OSError: x" in lines
    assert "without a result: b" in lines
    assert lines[-1].startswith("exit code unknown: the run is not over")


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


class AsciiPipe(io.StringIO):
    encoding = "ascii"


def every_result() -> list[ScenarioResult]:
    return [maker() for maker in ALL]


def test_no_control_characters_on_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    pipe = io.StringIO()
    print_summary(summarise(run_record(every_result()), every_result()), pipe)
    assert all(line.isprintable() for line in pipe.getvalue().split("\n"))
    assert "<script>" in pipe.getvalue()


def test_colour_on_a_terminal_and_hostile_text_obeyed_nowhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    screen = Terminal()
    summary = summarise(run_record(every_result()), every_result())
    print_summary(summary, screen)
    shown = screen.getvalue()
    assert "\x1b[1;31munexpected  crash" in shown
    assert "\x1b[31mred" not in shown
    assert "\x07" not in shown
    assert "\u202e" not in shown
    plain = io.StringIO()
    print_summary(summary, plain)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    screen = Terminal()
    print_summary(summary, screen)
    assert screen.getvalue() == plain.getvalue()


def test_a_pass_on_hardware_looks_stronger_than_a_modelled_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    shown = []
    for origin in ("hardware", MODELLED):
        item = attempt(Verdict.PASS, proof=Proof(kernels={"op": origin}))
        screen = Terminal()
        print_summary(summarise(None, [result("a", [item], Outcome.EXPECTED)]), screen)
        shown.append(screen.getvalue())
    assert "\x1b[1;32mexpected" in shown[0]
    assert "\x1b[32mexpected" in shown[1]


def test_an_ascii_stream_gets_escapes() -> None:
    pipe = AsciiPipe()
    item = replace(passing(), id="naïve/文")
    print_summary(summarise(run_record([item]), [item]), pipe)
    assert "na\\xefve/\\u6587" in pipe.getvalue()


def test_hostile_text_stays_on_its_line() -> None:
    plain = text_of([fixed()])
    odd = replace(fixed(), id=HOSTILE, summary=HOSTILE, explanation=HOSTILE, file=HOSTILE)
    assert len(text_of([odd]).splitlines()) == len(plain.splitlines())
    assert len(text_of([hostile()]).splitlines()) < 60


def test_the_console_imports_neither_torch_nor_rich_nor_templates() -> None:
    code = (
        "import sys, io\n"
        "import reports.console, reports.summary, reports.store\n"
        "s = reports.summary.summarise(None, [])\n"
        "reports.console.print_summary(s, io.StringIO())\n"
        "print([m for m in ('torch', 'numpy', 'rich', 'jinja2', 'pydantic', 'click', 'megatron')"
        " if m in sys.modules])\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
