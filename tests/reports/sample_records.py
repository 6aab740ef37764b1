"""Hand-made records of every kind of outcome, and a run folder to put them in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sample_parts import (
    HOSTILE,
    LINK,
    attempt,
    behaviour,
    environment,
    path,
    rank,
    result,
    scenario,
    selection,
    stats,
    window,
)

from harness.record.codec import to_jsonable
from harness.record.evidence import (
    AddressFaultEvidence,
    ExceptionEvidence,
    LayoutEvidence,
    NoteEvidence,
    ValueEvidence,
)
from harness.record.files import RUN_FILE, result_path, write_record
from harness.record.phase import Phase
from harness.record.result import (
    FaultReport,
    Proof,
    RunRecord,
    ScenarioResult,
)
from harness.record.selection import OverlapSlice
from harness.record.verdict import Outcome, Verdict, exit_code
from harness.scenario.spec import Published


def passing(name: str = "quickstart/zigzag[cp4]") -> ScenarioResult:
    """A pass with ties on cp_rank 1."""
    selections = tuple(
        selection(cp_rank, stats(tie=cp_rank % 2), seed=seed)
        for cp_rank in range(4)
        for seed in (0, 1, 2)
    )
    return result(name, [attempt(Verdict.PASS, selections=selections)], Outcome.EXPECTED)


def released_defect(name: str = "causal/zigzag[cp4]") -> ScenarioResult:
    """The known wrong selection of a released kernel."""
    wrong = tuple(
        selection(cp_rank, stats(below=100 * cp_rank), stage=stage)
        for cp_rank in range(4)
        for stage in ("wrapper", "final")
    )
    found = attempt(
        Verdict.WRONG_SELECTION,
        selections=wrong,
        windows=tuple(window(r, short=16 * r) for r in range(4)),
        behaviours=tuple(behaviour(r) for r in range(4)),
    )
    return result(
        name,
        [found],
        Outcome.KNOWN,
        expected="known: wrong_selection as chunk_local_window",
        explanation=f"known of this build, see {LINK}",
    )


def wrong_selection(name: str = "causal/unknown[cp4]") -> ScenarioResult:
    """An unexpected wrong selection that differs between seeds."""
    wrong = tuple(
        selection(cp_rank, stats(below=10 * seed), seed=seed)
        for cp_rank in range(4)
        for seed in (0, 1)
    )
    found = attempt(
        Verdict.WRONG_SELECTION, selections=wrong, behaviours=(behaviour(0, matching=40),)
    )
    return result(name, [found], Outcome.UNEXPECTED, explanation="wrong_selection")


def crash(name: str = "faults/crash[cp4]") -> ScenarioResult:
    """Rank 2 dies by a signal while scoring; the others are victims."""
    ranks = [
        rank(
            number,
            exit_code=None,
            signal=9,
            ended_by_harness=True,
            completed=False,
            last_phase=Phase.GATHER,
            last_line='{"e": "phase", "phase": "gather"}',
        )
        for number in range(4)
    ]
    ranks[2] = replace(
        ranks[2],
        signal=11,
        ended_by_harness=False,
        last_phase=Phase.SCORE,
        last_line='{"e": "phase", "phase": "score"}',
        stacks="ranks/faults_crash/rank2.stacks",
    )
    fault = FaultReport(
        verdict=Verdict.CRASH,
        global_rank=2,
        phase=Phase.SCORE,
        cause="ended by signal SIGSEGV",
        victims=(0, 1, 3),
    )
    found = attempt(Verdict.CRASH, ranks=tuple(ranks), fault=fault, paths=())
    return result(name, [found], Outcome.UNEXPECTED, explanation=fault.cause)


def hang(name: str = "faults/hang[cp4]") -> ScenarioResult:
    """Rank 1 stops in the gather; a second attempt shows the same."""
    fault = FaultReport(
        verdict=Verdict.HANG,
        global_rank=1,
        phase=Phase.GATHER,
        cause="phase gather did not end within 60 s; the process is stopped (state T)",
        victims=(0, 2, 3),
    )
    ranks = tuple(
        rank(n, exit_code=None, signal=9, ended_by_harness=True, completed=False) for n in range(4)
    )
    first = attempt(Verdict.HANG, fault=fault, ranks=ranks, paths=())
    return result(
        name,
        [first, replace(first, number=2, isolation="scenario")],
        Outcome.UNEXPECTED,
        explanation=fault.cause,
    )


def memory_fault(name: str = "faults/address[cp4]") -> ScenarioResult:
    """A modelled kernel forms an address behind its operand."""
    raised = ExceptionEvidence(
        type="harness.kernels.addresses.AddressFault",
        text="address outside the operand\nmore",
        traceback="Traceback ...\n  File x\n",
        origin="build",
        address_fault=AddressFaultEvidence(
            kernel="indexer_top_k",
            operand="lengths",
            row=4096,
            index=0,
            element_offset=4096,
            allowed=(0, 4096),
            klass="past_tensor",
        ),
    )
    fault = FaultReport(
        verdict=Verdict.MEMORY_FAULT,
        global_rank=0,
        phase=Phase.SELECT,
        cause="modelled indexer_top_k left operand lengths",
        victims=(1, 2, 3),
    )
    ranks = (rank(0, exception=raised, exit_code=1), rank(1), rank(2), rank(3))
    return result(
        name,
        [attempt(Verdict.MEMORY_FAULT, fault=fault, ranks=ranks)],
        Outcome.UNEXPECTED,
        explanation=fault.cause,
    )


def wrong_path(name: str = "path/fallback[cp4]") -> ScenarioResult:
    """The fallback ran where the fused scorer was meant."""
    paths = tuple(path(number, plan="unfused_bounds", fused=False) for number in range(4))
    found = attempt(Verdict.WRONG_PATH, paths=paths, secondary=(Verdict.WRONG_VALUE,), values=(
        ValueEvidence(
            global_rank=1, cp_rank=1, microbatch=0, layer=0, seed=0, name="attention_output",
            gradient=False, max_abs_diff=0.5, max_rel_diff=float("nan"), tolerance_abs=0.01,
            tolerance_rel=0.02, within=False, reason="bf16 products, fp32 sums",
        ),
    ), layouts=(
        LayoutEvidence(
            global_rank=1, cp_rank=1, microbatch=0, layer=0, seed=0, table="gathered_keys",
            equal=False, detail="first difference at row 3",
        ),
    ))  # fmt: skip
    return result(name, [found], Outcome.UNEXPECTED, explanation="wrong_path, wrong_value")


def not_run(name: str = "graph/capture[cp4]") -> ScenarioResult:
    """A scenario that needs a GPU."""
    found = attempt(
        Verdict.NOT_RUN, paths=(), ranks=(), proof=Proof(), missing_capability="a CUDA device"
    )
    return result(name, [found], Outcome.NOT_RUN, explanation="missing a CUDA device")


def fixed(name: str = "causal/fixed[cp4]") -> ScenarioResult:
    """A known defect that is gone."""
    base = passing(name)
    return replace(
        base,
        outcome=Outcome.FIXED,
        expected="known: wrong_selection as chunk_local_window",
        explanation=f"known of this build ({LINK}), but pass here: remove the rule",
    )


def hostile(name: str = f"hostile/{HOSTILE}") -> ScenarioResult:
    """Every text that a user, a build or a site controls is hostile."""
    raised = ExceptionEvidence(type=HOSTILE, text=HOSTILE, traceback=HOSTILE, origin="build")
    ranks = (rank(0, host=HOSTILE, last_line=HOSTILE, stacks=HOSTILE, exception=raised),)
    fault = FaultReport(verdict=Verdict.CRASH, global_rank=0, phase=Phase.BUILD, cause=HOSTILE)
    proof = Proof(
        kernels={HOSTILE: HOSTILE},
        overlays=(HOSTILE,),
        injected=(HOSTILE,),
        facts={HOSTILE: HOSTILE},
    )
    paths = (replace(path(0), plan=HOSTILE, reason=HOSTILE, scorer=HOSTILE, calls={HOSTILE: 1}),)
    total = stats(below=3)
    picked = replace(
        selection(0, total),
        stage=HOSTILE,
        by_half=(OverlapSlice(name=HOSTILE, stats=total),),
        by_sequence=(OverlapSlice(name=HOSTILE, stats=total),),
        by_distance=(OverlapSlice(name=HOSTILE, stats=total),),
    )
    found = attempt(
        Verdict.CRASH,
        ranks=ranks,
        fault=fault,
        proof=proof,
        paths=paths,
        selections=(picked,),
        behaviours=(replace(behaviour(0), name=HOSTILE),),
        notes=(NoteEvidence(topic=HOSTILE, text=HOSTILE),),
    )
    figure = Published(what=HOSTILE, value=HOSTILE, link=HOSTILE)
    return result(
        name,
        [found],
        Outcome.UNEXPECTED,
        scenario=to_jsonable(replace(scenario(name), published=(figure,))),
        summary=HOSTILE,
        file=HOSTILE,
        expected=HOSTILE,
        explanation=HOSTILE,
        source=(HOSTILE,),
        tags=(HOSTILE,),
        rerun=f"dsa-harness run -k {HOSTILE}",
    )


ALL = (
    passing,
    released_defect,
    wrong_selection,
    crash,
    hang,
    memory_fault,
    wrong_path,
    not_run,
    fixed,
    hostile,
)
"""One maker for each kind of result."""


def run_record(results: Sequence[ScenarioResult], **changes: object) -> RunRecord:
    """The record of a finished run with these results."""
    code = exit_code((item.verdict, item.outcome) for item in results)
    plain = RunRecord(
        name="20260501-100000-sample",
        started_at="2026-05-01T10:00:00Z",
        finished_at="2026-05-01T10:00:20Z",
        command=("torchrun", "launch/run.py", "--scenario", "scenarios/quickstart"),
        rerun="torchrun --standalone --nproc-per-node 4 launch/run.py --scenario scenarios",
        world_size=4,
        num_nodes=1,
        isolation="scenario",
        environment=environment(),
        scenario_ids=tuple(item.id for item in results),
        exit_code=int(code),
        exit_meaning=code.meaning,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def write_run(folder: Path, results: Sequence[ScenarioResult], **changes: object) -> Path:
    """Write a run folder as the leader does."""
    write_record(folder / RUN_FILE, run_record(results, **changes))
    for item in results:
        write_record(result_path(folder, item.id), item)
    return folder
