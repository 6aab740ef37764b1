"""Preloads: what a forked child still can do with CUDA, and what happens when it cannot."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from harness.runtime.preload_names import PARENT_VARIABLE

ROOT = Path(__file__).resolve().parents[2]


def _run(code):
    # A process of its own: a process has one forkserver for its whole life.
    env = {key: value for key, value in os.environ.items() if key != PARENT_VARIABLE}
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.ranks
@pytest.mark.parametrize(("cuda", "expected"), [(True, False), (False, True)])
def test_only_the_torch_preload_leaves_cuda_to_forked_children(cuda, expected):
    """The production modules ask CUDA for devices while they are imported."""
    done = _run(
        f"""
        from harness.runtime.spawner import Spawner
        facts = Spawner(cuda={cuda})
        facts.prepare()
        print(facts._probe(lambda: None).bad_fork)
        """
    )
    assert done.stdout.split() == [str(expected)], done.stderr


@pytest.mark.slow
@pytest.mark.ranks
def test_a_poisoned_forkserver_gives_way_to_spawn():
    done = _run(
        """
        import harness.runtime.spawner as spawner
        spawner.PRELOAD_TORCH = spawner.PRELOAD
        made = spawner.Spawner(cuda=True)
        facts = made.prepare()
        print(facts.start_method, "_is_in_bad_fork" in facts.reason)
        from harness.runtime.child import answer_probe
        print(made._context.get_start_method())
        """
    )
    assert done.stdout.split() == ["spawn", "True", "spawn"], done.stderr


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("in_children", "message"),
    [(True, "planted: no torch here"), (False, "although its child can")],
)
def test_a_preload_that_cannot_be_imported_is_said(tmp_path, in_children, message):
    broken = tmp_path / "torch"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise ImportError('planted: no torch here')\n")
    done = _run(
        f"""
        import sys
        from harness.runtime.spawner import Spawner, SpawnerError
        if {in_children}:
            sys.path.insert(0, {str(tmp_path)!r})
        try:
            Spawner(cuda=False, paths=[{str(tmp_path)!r}]).prepare()
        except SpawnerError as error:
            print(error)
        """
    )
    assert message in done.stdout, done.stderr


def test_naming_the_preloads_does_not_import_torch():
    done = _run(
        """
        import sys
        import harness.runtime.leader, harness.runtime.follower, launch.lead
        print(sorted({"torch", "megatron", "rich"} & set(sys.modules)))
        """
    )
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.ranks
def test_a_preload_that_crashes_is_said(tmp_path):
    broken = tmp_path / "torch"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise SystemError('planted: a broken build')\n")
    done = _run(
        f"""
        from harness.runtime.spawner import Spawner, SpawnerError
        try:
            Spawner(cuda=False, paths=[{str(tmp_path)!r}]).prepare()
        except SpawnerError as error:
            print(error)
        """
    )
    assert "the forkserver ended during its imports" in done.stdout
    assert "planted: a broken build" in done.stderr
