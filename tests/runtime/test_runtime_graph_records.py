"""Replays against eager forwards with a stand-in for the graph; a stale replay is a mismatch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from run_alone import one_rank

from harness.production import preload  # noqa: F401 (imports Megatron, warnings silenced)
from harness.production.config import transformer_config
from harness.production.locate import find_build
from harness.production.scorer import run_scorer, scorer_inputs
from harness.record.graphs import CAPTURED, FAILED
from harness.runtime.cases import begin, cases, kernels
from harness.runtime.engine import _stage
from harness.runtime.graph_records import Capture, capture_case
from harness.runtime.journal import Journal
from harness.runtime.launch import Launch
from harness.runtime.level_scorer import _forward_again
from harness.runtime.task import Task
from harness.scenario.spec import (
    GraphSpec,
    KernelsSpec,
    MicrobatchSpec,
    ModelSpec,
    ParallelSpec,
    Scenario,
)

SCENARIO = Scenario(
    id="t",
    summary="",
    model=ModelSpec(name="small", dsa_indexer_n_heads=4),
    level="scorer",
    kernels=KernelsSpec(dsa_kernel_backend="none"),
    parallel=ParallelSpec(context_parallel_size=2),
    microbatches=(MicrobatchSpec(sequences=(64, 32)),),
    graph=GraphSpec(cuda_graph_impl="local", replays=3),
)


class EagerGraph:
    """Replays by running the forward once more, as a right graph would."""

    def capture(self, forward: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        return forward(), lambda: forward() is None


class StaleGraph:
    """Replays nothing: the results of the capture stay in place."""

    def capture(self, forward: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        return forward(), lambda: None


class BrokenGraph:
    """Stops at the capture."""

    def capture(self, forward: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        raise RuntimeError("operation not permitted when stream is capturing")


@pytest.fixture
def captured(tmp_path):
    def run(device) -> Capture:
        task = Task(
            scenario=SCENARIO,
            global_rank=0,
            local_rank=0,
            world_size=1,
            store="",
            folder=str(tmp_path),
            evidence=("none",),
        )
        journal = Journal(task.journal, global_rank=0)
        (case,) = cases(SCENARIO)
        with one_rank(tmp_path), _stage(task, journal, find_build()) as stage:
            config = transformer_config(SCENARIO, modelled=False)
            inputs = scorer_inputs(SCENARIO.model, case.sources, case.pack, 0)
            begin(stage, case, 0)
            with kernels(stage, case):
                run_scorer(config, inputs, case.pack, 0)
            seen = list(stage.recorder.calls)
            launch = Launch(
                cp_rank=0,
                module=None,
                inputs={"q": inputs.q, "k": inputs.k, "weights": inputs.weights},
                forward=partial(_forward_again, config, 0),
                rows={"q": 0, "weights": 0},
            )
            result = capture_case(stage, case, launch, device)
            assert stage.recorder.calls == seen
        journal.close()
        return result

    return run


def test_replays_with_other_packs_of_the_same_capacity_equal_eager(captured):
    capture = captured(EagerGraph())
    assert capture.status == CAPTURED
    assert [replay.pack for replay in capture.replays] == [(64, 32), (32, 64), (64, 32)]
    assert all(replay.equal and replay.rows == 48 for replay in capture.replays)


def test_planted_stale_replay_differs(captured):
    first, *others = captured(StaleGraph()).replays
    assert first.equal
    assert all(replay.rows_different and not replay.equal for replay in others)
    assert others[0].first_different is not None


def test_planted_failed_capture_is_kept_with_what_it_said(captured):
    capture = captured(BrokenGraph())
    assert capture.status == FAILED
    assert capture.reason == ("RuntimeError: operation not permitted when stream is capturing")
    assert capture.replays == ()
