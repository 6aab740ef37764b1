"""Runs for the page: a Dynamic CP history, hundreds of ranks, rows and collectives of all kinds."""

from __future__ import annotations

from dataclasses import replace

from sample_parts import attempt, path, rank, result, scenario, selection, stats, window

from harness.layout import pack_sequences, rank_segments
from harness.record.codec import to_jsonable
from harness.record.path import CallEvidence, TensorFacts
from harness.record.phase import Phase
from harness.record.result import FaultReport, PhaseTiming, ScenarioResult
from harness.record.selection import OverlapSlice, SelectionEvidence
from harness.record.verdict import Outcome, Verdict
from harness.scenario.spec import MicrobatchSpec, ParallelSpec

PHASES = tuple(
    PhaseTiming(phase=phase, begin_s=number * 0.1, end_s=(number + 1) * 0.1)
    for number, phase in enumerate(Phase)
)


def spread_over(cp_rank: int, microbatch: int, sequences: int, below: int) -> SelectionEvidence:
    """Evidence of one rank and microbatch, by sequence and by distance."""
    total = stats(below=below)
    return replace(
        selection(cp_rank, total),
        microbatch=microbatch,
        by_sequence=tuple(
            OverlapSlice(name=f"sequence {n}", stats=stats(below=below * (n % 2)))
            for n in range(sequences)
        ),
        by_distance=tuple(
            OverlapSlice(name=f"distance {low}..{2 * low - 1}", stats=stats(below=below))
            for low in (1, 2, 4, 8, 16)
        ),
    )


def dynamic_cp(name: str = "dynamic/history[cp8]") -> ScenarioResult:
    """Five microbatches over changing CP sizes, one of them wrong."""
    packs = (((128, 64), 2), ((512,), 8), ((128, 64), 2), ((300, 0, 7), 4), ((16,), 1))
    spec = replace(
        scenario(name),
        parallel=ParallelSpec(context_parallel_size=8, dynamic_context_parallel=True),
        microbatches=tuple(MicrobatchSpec(sequences=lengths, cp=cp) for lengths, cp in packs),
    )
    picks = tuple(
        spread_over(cp_rank, number, len(lengths), 40 if number == 3 else 0)
        for number, (lengths, cp) in enumerate(packs)
        for cp_rank in range(cp)
    )
    found = attempt(
        Verdict.WRONG_SELECTION,
        selections=picks,
        ranks=tuple(rank(n, phases=PHASES) for n in range(8)),
        calls=(
            CallEvidence(
                symbol="indexer_forward", origin="modelled", microbatch=0, layer=0, seed=0,
                result="tensor", facts={"top_k": 16},
                tensors=(
                    TensorFacts(name="q", shape=(64, 32, 128), dtype="bfloat16", device="cpu"),
                ),
            ),
        ),
    )  # fmt: skip
    return result(name, [found], Outcome.UNEXPECTED, scenario=to_jsonable(spec))


def many_ranks(cp_size: int = 512, name: str = "large/many[cp512]") -> ScenarioResult:
    """A wrong selection over many ranks, with a victim or two."""
    spec = replace(
        scenario(name),
        parallel=ParallelSpec(context_parallel_size=cp_size),
        microbatches=(MicrobatchSpec(sequences=(100_000, 20_000, 5_000)),),
    )
    pack = pack_sequences([100_000, 20_000, 5_000], cp_size=cp_size)
    assert rank_segments(pack, cp_size - 1)
    picks = tuple(
        spread_over(cp_rank, 0, 3, 7 if cp_rank == cp_size // 2 else 0)
        for cp_rank in range(cp_size)
    )
    ranks = tuple(
        rank(n, host=f"n{n // 8}", phases=PHASES[: 5 + n % 5], completed=n % 7 != 0)
        for n in range(cp_size)
    )
    found = attempt(
        Verdict.WRONG_SELECTION,
        selections=picks,
        ranks=ranks,
        paths=tuple(path(n) for n in range(cp_size)),
        windows=tuple(window(n) for n in range(cp_size)),
    )
    return result(name, [found], Outcome.UNEXPECTED, scenario=to_jsonable(spec))


def stopped(name: str = "faults/stopped[cp2]") -> ScenarioResult:
    """A hang in which one rank's last phase never ended."""
    open_phase = (*PHASES[:5], PhaseTiming(phase=Phase.GATHER, begin_s=0.5))
    fault = FaultReport(
        verdict=Verdict.HANG,
        global_rank=1,
        phase=Phase.GATHER,
        cause="rank 1 in phase gather: process was stopped (state T)",
        victims=(0,),
    )
    ranks = (
        rank(0, phases=open_phase, completed=False, ended_s=9.5),
        rank(1, phases=open_phase, completed=False, ended_s=9.0, process_state="T"),
    )
    found = attempt(Verdict.HANG, fault=fault, ranks=ranks, paths=())
    return result(name, [found], Outcome.UNEXPECTED, explanation=fault.cause)
