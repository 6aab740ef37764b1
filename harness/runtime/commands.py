"""Commands as people would type them, for records and for starting what they say."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

from harness.runtime.options import JUDGE, Options
from harness.runtime.task import ENGINE
from harness.runtime.world import World

RUN_SCRIPT = Path(__file__).resolve().parents[2] / "launch" / "run.py"


def option_words(options: Options) -> list[str]:
    """Return the command-line words for everything but paths and selection."""
    words: list[str] = []
    for flag, value in (
        ("--isolation", options.isolation),
        ("--supervision", options.supervision),
        ("--megatron", options.megatron),
        ("--out", options.out if options.out != "runs" else None),
        ("--name", options.name),
    ):
        words += [flag, value] if value else []
    for text in options.inject:
        words += ["--inject", text]
    words += ["--allow-mixed"] if options.allow_mixed else []
    words += ["--bare"] if options.bare else []
    words += ["--core-dumps"] if options.core_dumps else []
    words += ["--engine", options.engine] if options.engine != ENGINE else []
    return words + (["--judge", options.judge] if options.judge != JUDGE else [])


def launch_words(world: World, words: list[str]) -> list[str]:
    """Return the whole command that starts workers for those words."""
    if world.launcher == "srun":
        start = ["srun", f"--ntasks={world.world_size}", _short(sys.executable)]
    else:
        start = ["torchrun", "--standalone", "--nproc-per-node", str(world.world_size)]
    return [*start, _short(str(RUN_SCRIPT)), *words]


def run_words(options: Options) -> list[str]:
    """Return the arguments of ``launch/run.py`` that give ``options`` again."""
    words = ["--scenario", *options.scenarios]
    words += ["-k", options.keyword] if options.keyword else []
    for tag in options.tags:
        words += ["-t", tag]
    words += ["--dry-run"] if options.dry_run else []
    return [*words, *option_words(options)]


def rerun_run(world: World, options: Options) -> str:
    """Return the command that repeats a run."""
    return shlex.join(launch_words(world, run_words(options)))


def rerun_scenario(world: World, options: Options, file: str, scenario_id: str) -> str:
    """Return the command that repeats one scenario, read from ``file:line``."""
    words = ["--scenario", file.rpartition(":")[0], "-k", scenario_id]
    return shlex.join(launch_words(world, [*words, *option_words(options)]))


def _short(path: str) -> str:
    relative = os.path.relpath(path)
    return relative if len(relative) < len(path) and not relative.startswith("..") else path
