"""Commands as people would type them, for records and for starting what they say."""

from __future__ import annotations

import os
import shlex
import socket
import sys
from pathlib import Path

from harness.runtime.options import DUMP_BYTES, JUDGE, Options
from harness.runtime.task import ENGINE
from harness.runtime.world import World

_RENDEZVOUS_PORT = 29400
"""torchrun's own default for c10d."""
RUN_SCRIPT = Path(__file__).resolve().parents[2] / "launch" / "run.py"


def option_words(options: Options) -> list[str]:
    """Return the command-line words for everything but paths and selection."""
    words: list[str] = []
    for flag, value in (
        ("--isolation", options.isolation),
        ("--supervision", options.supervision),
        ("--megatron", options.megatron),
        ("--evidence", options.evidence),
        ("--modelled", options.modelled),
        ("--out", options.out if options.out != "runs" else None),
        ("--name", options.name),
    ):
        words += [flag, value] if value else []
    for text in options.inject:
        words += ["--inject", text]
    for name in options.overlay:
        words += ["--overlay", name]
    words += ["--repeat", str(options.repeat)] if options.repeat is not None else []
    words += ["--allow-mixed"] if options.allow_mixed else []
    words += ["--dump-bytes", str(options.dump_bytes)] if options.dump_bytes != DUMP_BYTES else []
    words += ["--dump-all"] if options.dump_all else []
    if options.ranks_per_gpu > 1:
        words += ["--ranks-per-gpu", str(options.ranks_per_gpu)]
    words += ["--bare"] if options.bare else []
    words += ["--coredump"] if options.core_dumps else []
    words += ["--engine", options.engine] if options.engine != ENGINE else []
    return words + (["--judge", options.judge] if options.judge != JUDGE else [])


def launch_words(world: World, words: list[str]) -> list[str]:
    """Return the whole command that starts workers for those words."""
    if world.launcher == "srun":
        nodes = [f"--nodes={world.num_nodes}"] if world.num_nodes > 1 else []
        start = ["srun", *nodes, f"--ntasks={world.world_size}", _short(sys.executable)]
    elif world.num_nodes > 1:
        # The same on every node; any of them can be the meeting point.
        start = ["torchrun", "--nnodes", str(world.num_nodes), "--nproc-per-node"]
        start += [str(world.local_world_size), "--rdzv-backend", "c10d"]
        start += ["--rdzv-endpoint", f"{socket.gethostname()}:{_RENDEZVOUS_PORT}"]
    else:
        start = ["torchrun", "--standalone", "--nproc-per-node", str(world.world_size)]
    return [*start, _short(str(RUN_SCRIPT)), *words]


def run_words(options: Options) -> list[str]:
    """Return the arguments of ``launch/run.py`` that give ``options`` again."""
    budget = [] if options.budget is None else ["--budget", str(options.budget)]
    if options.resume is not None:
        jobs = [] if options.jobs == 1 else ["--jobs", str(options.jobs)]
        dry_run = ["--dry-run"] if options.dry_run else []
        return ["--resume", options.resume, *jobs, *budget, *dry_run]
    words = ["--scenario", *options.scenarios]
    words += ["-k", options.keyword] if options.keyword else []
    for tag in options.tags:
        words += ["-t", tag]
    words += ["--ids", options.ids] if options.ids else []
    words += ["--jobs", str(options.jobs)] if options.jobs != 1 else []
    words += ["--dry-run"] if options.dry_run else []
    words += budget
    return [*words, *option_words(options)]


def rerun_run(world: World, options: Options) -> str:
    """Return the command that repeats a run."""
    return shlex.join(launch_words(world, run_words(options)))


def rerun_scenario(world: World, options: Options, file: str, scenario_id: str) -> str:
    """Return the command that repeats one scenario, read from ``file:line``."""
    words = ["--scenario", file.rpartition(":")[0], "-k", f"={scenario_id}"]
    return shlex.join(launch_words(world, [*words, *option_words(options)]))


def _short(path: str) -> str:
    relative = os.path.relpath(path)
    return relative if len(relative) < len(path) and not relative.startswith("..") else path
