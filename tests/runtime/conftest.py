"""One forkserver for all tests of this folder that start rank processes in this process."""

import os
import sys
from pathlib import Path

import pytest

from harness.runtime.attempts import FreshRunner, Places
from harness.runtime.options import Options
from harness.runtime.plan import Planned
from harness.runtime.run_folder import RunFolder
from harness.runtime.starters import NodeStarter
from harness.runtime.supervisor import Supervisor
from harness.scenario.spec import (
    KernelsSpec,
    LimitsSpec,
    MicrobatchSpec,
    ModelSpec,
    ParallelSpec,
    Scenario,
)

HERE = str(Path(__file__).resolve().parent)


@pytest.fixture(scope="session")
def node():
    """A prepared starter: forkserver with torch and the production modules."""
    saved = dict(os.environ)
    sys.path.insert(0, HERE)
    starter = NodeStarter(paths=[HERE])
    starter.facts = starter.prepare(lambda: None)
    yield starter
    sys.path.remove(HERE)
    os.environ.clear()
    os.environ.update(saved)


@pytest.fixture
def make_scenario():
    def make(name="tiny/one", *, ranks=2, time_s=10.0, level="attention", **fields):
        return Scenario(
            id=name,
            summary="Ranks meet in collectives.",
            model=ModelSpec(name="small"),
            level=level,
            kernels=KernelsSpec(),
            parallel=ParallelSpec(context_parallel_size=ranks),
            microbatches=(MicrobatchSpec(sequences=(64,)),),
            limits=LimitsSpec(time_s=time_s),
            **fields,
        )

    return make


@pytest.fixture
def make_planned(make_scenario):
    def make(*args, ranks=2, **fields):
        scenario = make_scenario(*args, ranks=ranks, **fields)
        return Planned(scenario=scenario, file="tiny.yaml:1", num_ranks=ranks, device="cpu")

    return make


@pytest.fixture
def make_places(tmp_path):
    def make(**options):
        options = {"engine": "tiny_engine:execute", **options}
        folder = RunFolder.create(tmp_path / "runs", "test")
        scratch = tmp_path / "scratch"
        scratch.mkdir(exist_ok=True)
        asked = Options(scenarios=("tiny.yaml",), **options)
        return Places(folder=folder, scratch=scratch, options=asked)

    return make


@pytest.fixture
def fresh(node, make_places):
    """Make a runner that gives each attempt new processes."""

    def make(*, stop=lambda: False, **options):
        places = make_places(**options)
        supervisor = Supervisor(run_folder=places.folder.path, stop_requested=stop)
        return FreshRunner(places, node, supervisor)

    return make
