"""Isolation group: one generation for compatible scenarios, retired by any fault."""

import shutil
import tempfile
from pathlib import Path

import pytest

from harness.runtime.control import ControlServer
from harness.runtime.generation import SharedRunner
from harness.runtime.processes import session_members
from harness.runtime.supervisor import Supervisor

pytestmark = [pytest.mark.ranks]


@pytest.fixture
def shared(node, make_places):
    """Make runners that share processes, each with a control socket of its own."""
    made = []

    def make(**options):
        places = make_places(**options)
        # Not below tmp_path: socket paths are limited to about a hundred characters.
        folder = Path(tempfile.mkdtemp(prefix="dsa-"))
        server = ControlServer(folder / "control.sock")
        supervisor = Supervisor(run_folder=places.folder.path)
        runner = SharedRunner(places, node, supervisor, server)
        made.append((runner, server, folder))
        return runner

    yield make
    for runner, server, folder in made:
        runner.close()
        server.close()
        shutil.rmtree(folder)


def _pids(done):
    return [rank.pid for rank in done.ranks]


def test_compatible_scenarios_share_processes(shared, make_planned):
    runner = shared()
    first = runner.run(make_planned("tiny/first"), 1)
    second = runner.run(make_planned("tiny/second"), 1)
    assert first.clean and second.clean
    assert _pids(first) == _pids(second)
    assert first.isolation == "group" and second.shared_with == ()
    out = runner._places.folder.path / "ranks"
    assert len(list(out.glob("*/1/rank0.out"))) == 2, "output is not split by scenario"
    runner.close()
    assert session_members(_pids(first)) == ()
    assert not list(runner._places.scratch.iterdir())


def test_another_key_gets_another_generation(shared, make_planned):
    runner = shared()
    two = runner.run(make_planned("tiny/two"), 1)
    three = runner.run(make_planned("tiny/three", ranks=3), 1)
    assert two.clean and three.clean
    assert not set(_pids(two)) & set(_pids(three))
    assert session_members(_pids(two)) == ()


@pytest.mark.parametrize("kind", ["sigsegv@1:score@second", "exception@0:score@second"])
def test_a_fault_retires_the_generation_and_names_who_shared_it(shared, make_planned, kind):
    runner = shared(inject=(kind,))
    items = [make_planned(f"tiny/{name}") for name in ("first", "second", "third")]
    first, second = runner.run(items[0], 1), runner.run(items[1], 1)
    assert first.clean and not second.clean
    assert [other.scenario.id for other in second.shared_with] == ["tiny/first"]
    assert session_members(_pids(first)) == ()
    third = runner.run(items[2], 1)
    assert third.clean
    assert not set(_pids(third)) & set(_pids(first))
    assert third.shared_with == ()


def test_a_deadline_in_a_generation(shared, make_planned):
    runner = shared(inject=("sleep@1:score@second",))
    assert runner.run(make_planned("tiny/first", time_s=1.0), 1).clean
    done = runner.run(make_planned("tiny/second", time_s=1.0), 1)
    assert done.ranks[1].deadline is not None
    assert done.ranks[0].waiting_in_collective is True
    assert session_members(_pids(done)) == ()


def test_a_member_that_never_joins_is_a_fault_not_a_wait(shared, make_planned, monkeypatch):
    import harness.runtime.starters as starters

    runner = shared()
    monkeypatch.setitem(starters.ENTRIES, "member", starters.ENTRIES["single"])
    done = runner.run(make_planned(), 1)
    assert not done.clean
    assert done.ranks[0].exit_code == 1 and done.ranks[0].last_phase is None
