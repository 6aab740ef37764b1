"""What is said of faults: once, and with everything that was recorded of them."""

from __future__ import annotations

from dataclasses import replace

from sample_parts import attempt, rank, result
from sample_records import crash, hang, memory_fault, passing, run_record

from harness.record.collective import CollectiveCall, CollectiveFinding, CollectiveKind, RankCall
from harness.record.device_fault import CoreDump, SanitizerFinding
from harness.record.phase import Phase
from harness.record.result import FaultReport, ScenarioResult
from harness.record.verdict import Outcome, Verdict
from reports.console import summary_text
from reports.faults import core_dump_text, fault_text, known_fault_text, sanitizer_text
from reports.findings import findings, rate_texts
from reports.markdown import render_markdown
from reports.summary import summarise

SANITIZER = SanitizerFinding(
    tool="memcheck",
    global_rank=1,
    kind="Precise",
    level="Error",
    text="Invalid global read",
    space="global",
    direction="read",
    size=4,
    address="0x7f00",
    allocation="4 bytes after an allocation of 64",
    kernel="topk_kernel",
    source="topk.cu:81",
    thread=(1, 0, 0),
    block=(2, 0, 0),
)
DUMP = CoreDump(
    file="dumps/host.1.dump",
    global_rank=1,
    exception="Warp Illegal Address",
    pc="0x10",
    function="topk_kernel",
    device=0,
    sm=3,
    block=(2, 0, 0),
    thread=(1, 0, 0),
)


def call(sequence: int, end: str | None) -> CollectiveCall:
    return CollectiveCall(
        group="1", ranks=(0, 1), sequence=sequence, operation="all_reduce", inputs=((8,),),
        dtype="float32", reduction="SUM", at=("model.py:7",), end=end,
    )  # fmt: skip


MISSING = CollectiveFinding(
    kind=CollectiveKind.MISSING,
    group="1",
    sequence=3,
    operation="all_reduce",
    ranks=(1,),
    waiting=(0,),
    calls=(RankCall(global_rank=0, call=call(3, None)),),
)


def parted(cause: str = "did not finish within the limit of phase score") -> ScenarioResult:
    fault = FaultReport(
        verdict=Verdict.HANG,
        global_rank=1,
        phase=Phase.SCORE,
        cause=cause,
        victims=(0,),
        collective=MISSING,
    )
    ranks = (
        rank(0, completed=False, last_collective=call(3, None), peak_rss_bytes=3 << 20),
        rank(1, completed=False, last_collective=call(2, "returned")),
    )
    return result(
        "a", [attempt(Verdict.HANG, fault=fault, ranks=ranks, paths=())], Outcome.UNEXPECTED
    )


def texts(item: ScenarioResult) -> dict[str, str]:
    return {finding.label: finding.text for finding in findings(item)}


def test_place_of_the_first_fault_is_said_once() -> None:
    fault = FaultReport(
        verdict=Verdict.HANG, global_rank=1, phase=Phase.GATHER, cause="rank 1 in phase gather: x"
    )
    assert fault_text(fault) == "global_rank 1 in phase gather: x"
    assert fault_text(replace(fault, cause="rank 2 in phase gather: x")) == (
        "global_rank 1 in phase gather: rank 2 in phase gather: x"
    )
    assert fault_text(replace(fault, global_rank=None)) == (
        "no rank can be named in phase gather: rank 1 in phase gather: x"
    )


def test_an_exception_that_the_cause_names_is_no_line_of_its_own() -> None:
    item = memory_fault()
    assert "exception" in texts(item)
    fault = item.last.fault
    assert fault is not None
    named = replace(fault, cause="AddressFault: address outside the operand")
    again = replace(item, attempts=(replace(item.last, fault=named),))
    assert "exception" not in texts(again)
    assert "address" in texts(again)


def test_a_known_memory_fault_names_kernel_and_row() -> None:
    item = replace(
        memory_fault(), outcome=Outcome.KNOWN, explanation="known of this build, see LINK"
    )
    lines = summary_text(summarise(run_record([item]), [item])).splitlines()
    assert (
        "            known defect: global_rank 0: indexer_top_k, operand lengths, row 4096, index "
        "0: element offset 4096 is outside 0 to 4095 (past_tensor)" in lines
    )
    known = replace(crash(), outcome=Outcome.KNOWN)
    assert known_fault_text(known) == "global_rank 2 in phase score: ended by signal SIGSEGV"


def test_where_ranks_part_company_is_told() -> None:
    item = parted()
    assert texts(item)["collective"] == MISSING.text
    assert "collective" not in texts(parted(f"waited: {MISSING.text}"))
    page = render_markdown(summarise(run_record([item]), [item]))
    assert "**Collective calls that part company: missing**" in page
    assert "**Last collective call**" in page
    assert "| 0 | `all_reduce #3 of group 1 (ranks 0, 1): float32 [8] SUM at model.py:7` |" in page
    assert " never came back |" in page
    assert " 3 MiB |" in page


def test_findings_of_the_cuda_tools() -> None:
    assert sanitizer_text(SANITIZER) == (
        "global_rank 1: memcheck Precise, global read of 4 bytes at 0x7f00, in topk_kernel "
        "(topk.cu:81), block (2, 0, 0), thread (1, 0, 0), Invalid global read, 4 bytes after an "
        "allocation of 64"
    )
    assert core_dump_text(DUMP) == (
        "global_rank 1: Warp Illegal Address, in topk_kernel, pc 0x10, device 0 SM 3, block (2, 0, "
        "0), thread (1, 0, 0) (dumps/host.1.dump)"
    )
    bare = SanitizerFinding(tool="memcheck", kind="Api", level="Error", text="error 700")
    assert sanitizer_text(bare) == "memcheck Api, error 700"
    item = crash()
    item = replace(
        item, attempts=(replace(item.last, sanitizer=(SANITIZER, bare), core_dumps=(DUMP,)),)
    )
    labels = [finding.label for finding in findings(item)]
    assert labels.count("sanitizer") == 1, "an API error is no fault on the device"
    assert "core dump" in labels
    page = render_markdown(summarise(run_record([item]), [item]))
    assert "| Error | no | memcheck Api, error 700 |" in page
    assert "| `dumps/host.1.dump` |" in page


def test_rate_of_repeated_attempts() -> None:
    assert rate_texts(crash()) == ()
    assert rate_texts(hang()) == ("hang: 2 of 2 (100.0 %, 95 % interval 34.2 % to 100.0 %)",)
    assert texts(hang())["rate"] == rate_texts(hang())[0]
    page = render_markdown(summarise(run_record([hang()]), [hang()]))
    assert "**Rate over the attempts**" in page


def test_the_rate_of_a_scenario_that_passes_is_shown_too() -> None:
    item = passing()
    item = replace(item, attempts=(item.last, replace(item.last, number=2)))
    lines = summary_text(summarise(run_record([item]), [item])).splitlines()
    assert "            rate: pass: 2 of 2 (100.0 %, 95 % interval 34.2 % to 100.0 %)" in lines


def test_an_attempt_that_was_cut_short_is_told() -> None:
    item = hang()
    first, second = item.attempts
    item = replace(item, attempts=(first, replace(second, cut_short="killed")), decides=1)
    assert texts(item)["attempts"] == (
        "2 attempts, number 1 decides; the others: 2 hang (cut short)"
    )
    page = render_markdown(summarise(run_record([item]), [item]))
    assert "| 2 | hang | - | no | 2026-05-01T10:00:00Z | 1.2 s | scenario | killed |" in page
