r"""Runs ranks under Nsight Systems, for where the time goes.

The profiler wraps a rank's whole process, as a sanitizer does, so it goes with ``--isolation
none``. As a program this module is what the launcher starts instead of Python; it becomes the
wrapped command on the ranks named, and the plain one on the others. Standard library only.

A profiler changes timing and adds synchronisation of its own: a profiled run is one to look at, and
its verdicts are no evidence. Runs without ``--profile`` have no profiler in them.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from harness.runtime.death import die_with_parent
from harness.runtime.sanitizer import LAUNCHER_VARIABLE

PROGRAM = "nsys"
FOLDER = "profiles"
"""Folder of a run with one report for each profiled rank."""
NOTE = (
    "ran under Nsight Systems on {where}: timing is what to read here, and no verdict of this run "
    "is evidence; run without --profile for verdicts"
)


class ProfilerError(ValueError):
    """The profiler cannot be used as asked."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Which ranks are profiled, and where the reports go.

    Attributes:
        folder: Receives ``rank<N>.nsys-rep``.
        ranks: Global ranks to profile, empty for all of them.
    """

    folder: str
    ranks: tuple[int, ...] = ()

    def wraps(self, global_rank: int) -> bool:
        """Tell whether a rank runs under the profiler."""
        return not self.ranks or global_rank in self.ranks


def parse_profile(text: str) -> tuple[int, ...]:
    """Read ``nsys`` or ``nsys@RANKS``, such as ``nsys@0,2``, and return the ranks; none means all.

    Raises:
        ProfilerError: naming what was expected.
    """
    name, at, ranks = text.partition("@")
    if name != PROGRAM:
        raise ProfilerError(f"--profile {text}: expected {PROGRAM}, found {name!r}")
    numbers = [part.strip() for part in ranks.split(",")] if at else []
    if not all(number.isdecimal() for number in numbers):
        raise ProfilerError(f"--profile {text}: expected ranks such as nsys@0,2, found {ranks!r}")
    return tuple(sorted({int(number) for number in numbers}))


def find_profiler() -> str | None:
    """Return the program: on the path, or in the toolkit."""
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    return shutil.which(PROGRAM) or shutil.which(PROGRAM, path=str(Path(home, "bin")))


def wrapped_words(
    program: str, settings: Settings, global_rank: int, words: Sequence[str]
) -> list[str]:
    """Return the command of one rank: under the profiler where it is asked for, else as it is."""
    if not settings.wraps(global_rank):
        return list(words)
    return [
        program,
        "profile",
        *("--trace", "cuda,nvtx,osrt"),
        *("--sample", "none"),
        *("--cuda-memory-usage", "true"),
        *("--force-overwrite", "true"),
        *("--output", str(Path(settings.folder) / f"rank{global_rank}")),
        *words,
    ]


def rank_words(settings: Settings, words: Sequence[str]) -> list[str]:
    """Return the arguments of the Python that the launcher starts on every rank."""
    ranks = ("--ranks", ",".join(map(str, settings.ranks))) if settings.ranks else ()
    return ["-m", "harness.runtime.profiler", "--folder", settings.folder, *ranks, "--", *words]


def main(arguments: Sequence[str] | None = None, env: Mapping[str, str] = os.environ) -> NoReturn:
    """Become this rank's command.

    Raises:
        ProfilerError: if the profiler is asked for here and not found.
    """
    parser = argparse.ArgumentParser(prog="python -m harness.runtime.profiler")
    parser.add_argument("--folder", required=True)
    parser.add_argument("--ranks", default="")
    parser.add_argument("command", nargs="+")
    given = parser.parse_args(sys.argv[1:] if arguments is None else arguments)
    ranks = tuple(int(text) for text in given.ranks.split(",") if text)
    settings = Settings(folder=given.folder, ranks=ranks)
    rank = int(env.get("RANK", env.get("SLURM_PROCID", "0")))
    # Workers meet at a socket named after their parent, which for some of them is the profiler.
    environment = {**env, LAUNCHER_VARIABLE: str(os.getppid())}
    words = list(given.command)
    if settings.wraps(rank):
        program = find_profiler()
        if program is None:
            raise ProfilerError(f"{PROGRAM} was not found on the path or below CUDA_HOME")
        Path(settings.folder).mkdir(parents=True, exist_ok=True)
        # The kernel keeps this over exec: the tool must not outlive the launcher.
        die_with_parent()
        words = wrapped_words(program, settings, rank, words)
    os.execvpe(words[0], words, environment)  # noqa: S606 (a list, no shell)


if __name__ == "__main__":
    main()
