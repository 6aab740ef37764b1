"""Hand-made pieces of records: evidence, ranks, attempts, results and environments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from harness.record.codec import to_jsonable
from harness.record.environment import Environment, GpuFacts
from harness.record.path import PathEvidence
from harness.record.phase import Phase
from harness.record.result import (
    Attempt,
    PhaseTiming,
    Proof,
    RankOutcome,
    ScenarioResult,
)
from harness.record.selection import (
    BehaviourEvidence,
    OverlapSlice,
    OverlapStats,
    RowFinding,
    SelectionEvidence,
    WindowEvidence,
)
from harness.record.verdict import Outcome, Verdict
from harness.scenario.spec import KnownRule, MicrobatchSpec, ModelSpec, ParallelSpec, Scenario

LINK = "https://github.com/NVIDIA/cudnn-frontend/pull/316"
MODELLED = "modelled 1.32.0 sm100"
HOSTILE = (
    "a|b `code` ``two`` <script>alert(1)</script> [x](http://e) **bold** \\| \x1b[31mred\x07 "
    "\u202ereversed\n# heading\n| new | row |\r\n--- \ud800 &lt; $x$ ~~gone~~ _under_"
)
"""Text that would break a table, a terminal or a page if it were not shown as text."""


def stats(*, tie: int = 1, below: int = 0, future: int = 0, **counts: int) -> OverlapStats:
    """64 rows with 16 keys due each; what is not tie or below is exact."""
    due = 64 * 16
    missing = counts.get("missing", 0)
    exact = due - tie - below - future - missing
    return OverlapStats(
        rows=64,
        rows_exhaustive=16,
        due=due,
        exact=exact,
        tie=tie,
        below=below,
        future=future,
        largest_gap=1.25 if below else 0.0,
        **counts,
    )


def selection(
    cp_rank: int, total: OverlapStats, *, seed: int = 0, stage: str = "final"
) -> SelectionEvidence:
    """Evidence of one rank; a wrong one comes with its worst row."""
    row = RowFinding(
        row=17, position=81, sequence=2, limit=82, picked=(3, 4, 5), wrong=(3, 4), due=(70, 71)
    )
    front = OverlapStats(rows=32, due=512, exact=512)
    return SelectionEvidence(
        global_rank=cp_rank,
        cp_rank=cp_rank,
        microbatch=0,
        layer=0,
        seed=seed,
        stage=stage,
        topk=16,
        reference_dtype="fp32",
        total=total,
        by_half=(OverlapSlice(name="front", stats=front), OverlapSlice(name="back", stats=total)),
        by_sequence=(OverlapSlice(name="sequence 0", stats=total),),
        by_distance=(OverlapSlice(name="distance 0..255", stats=total),),
        worst_rows=(row,) if total.num_wrong else (),
    )


def path(cp_rank: int, *, plan: str = "packed_thd", fused: bool = True) -> PathEvidence:
    """A proved path of one rank."""
    return PathEvidence(
        global_rank=cp_rank,
        cp_rank=cp_rank,
        microbatch=0,
        layer=0,
        seed=0,
        backend="cudnn",
        plan=plan,
        plan_source="inferred",
        reason="one fused call per segment",
        scorer="fused" if fused else "unfused",
        fused=fused,
        calls={"indexer_forward": 8, "indexer_top_k": 8},
    )


def rank(global_rank: int, **changes: object) -> RankOutcome:
    """A rank that ended well, unless changed."""
    plain = RankOutcome(
        global_rank=global_rank,
        host="n1",
        pid=4000 + global_rank,
        exit_code=0,
        last_phase=Phase.RECORD,
        last_line='{"e": "end", "status": "ok"}',
        completed=True,
        phases=(PhaseTiming(phase=Phase.SCORE, begin_s=1.0, end_s=1.5),),
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


PROOF = Proof(
    kernels={"indexer_forward": MODELLED, "indexer_top_k": MODELLED},
    provider="local",
    shims=("cuda_current_device",),
    facts={"passes_causal_offsets": False},
)


def attempt(verdict: Verdict, **changes: object) -> Attempt:
    """An attempt of four ranks; the evidence that the verdict needs is up to the caller."""
    fields: dict[str, object] = {
        "number": 1,
        "verdict": verdict,
        "started_at": "2026-05-01T10:00:00Z",
        "duration_s": 1.25,
        "ranks": tuple(rank(number) for number in range(4)),
        "proof": PROOF,
        "paths": tuple(path(number) for number in range(4)),
        **changes,
    }
    return Attempt(**fields)  # type: ignore[arg-type]


def scenario(name: str) -> Scenario:
    """A resolved scenario with one known rule."""
    return Scenario(
        id=name,
        summary="Several packed sequences keep their document-local causal positions.",
        model=ModelSpec(name="small"),
        parallel=ParallelSpec(context_parallel_size=4),
        microbatches=(MicrobatchSpec(sequences=(128, 64, 64)),),
        known=(
            KnownRule(
                when={"cudnn_frontend": ">=1.26"},
                verdict=Verdict.WRONG_SELECTION,
                behaviour="chunk_local_window",
                link=LINK,
            ),
        ),
    )


def result(
    name: str, attempts: Sequence[Attempt], outcome: Outcome, **changes: object
) -> ScenarioResult:
    """A result of a scenario."""
    spec = scenario(name)
    fields: dict[str, object] = {
        "id": name,
        "content_hash": "0123456789ab",
        "summary": spec.summary,
        "source": ("https://github.com/NVIDIA/Megatron-LM/pull/6206",),
        "tags": ("seed",),
        "file": "scenarios/quickstart/packs.yaml:3",
        "scenario": to_jsonable(spec),
        "attempts": tuple(attempts),
        "outcome": outcome,
        "expected": "pass",
        "rerun": f"dsa-harness run --ranks 4 --scenario scenarios/quickstart -k '{name}'",
        **changes,
    }
    return ScenarioResult(**fields)  # type: ignore[arg-type]


def behaviour(cp_rank: int, *, matching: int = 64) -> BehaviourEvidence:
    """Picks of one rank against the chunk-local window."""
    return BehaviourEvidence(
        global_rank=cp_rank,
        cp_rank=cp_rank,
        microbatch=0,
        layer=0,
        seed=0,
        name="chunk_local_window",
        rows=64,
        rows_matching=matching,
        rows_telling=48,
        rows_exhaustive=16,
        rows_exhaustive_exact=16,
        first_mismatch=None if matching == 64 else 5,
    )


def window(cp_rank: int, *, short: int = 0, long: int = 0, **changes: object) -> WindowEvidence:
    """Keys shown to the 64 rows of one rank; where rows differ, row 3 is the first."""
    plain = WindowEvidence(
        global_rank=cp_rank,
        cp_rank=cp_rank,
        microbatch=0,
        layer=1,
        seed=0,
        rows=64,
        rows_equal=64 - short - long,
        rows_short=short,
        rows_long=long,
    )
    if short or long:
        plain = replace(plain, first_different=3, window=1 if short else 40, limit=33)
    return replace(plain, **changes)  # type: ignore[arg-type]


def environment(**changes: object) -> Environment:
    """A host without a GPU."""
    plain = Environment(
        python="3.12.3",
        platform="Linux-x86_64",
        host="n1",
        num_cpus=8,
        torch="2.13.0",
        megatron_core="0.19.2",
        megatron_path="/opt/megatron",
        megatron_commit="0123456789abcdef",
        megatron_dirty=False,
        cudnn_frontend="1.32.0",
        variables={"OMP_NUM_THREADS": "1"},
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


GPU = GpuFacts(name="NVIDIA B200", uuid="GPU-1", capability="10.0", memory_bytes=1 << 37)
