r"""Runs ranks under compute-sanitizer and takes what it found into an attempt.

The tool wraps a rank's whole process, so it goes with ``--isolation none``, where scenarios run in
the launcher's own workers. As a program this module is what the launcher starts instead of Python:

    torchrun --standalone --nproc-per-node 4 --no-python python -m harness.runtime.sanitizer \
        --tool memcheck --ranks 1 --folder DIR -- python launch/run.py --isolation none ...

It becomes the wrapped command on the ranks named, and the plain one on the others. Standard library
only. Options were read from compute-sanitizer 2026.4.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NoReturn, get_args

from harness.record.device_fault import SanitizerFinding
from harness.record.evidence import NoteEvidence
from harness.record.result import Attempt, FaultReport
from harness.record.verdict import Verdict, primary
from harness.runtime.death import die_with_parent
from harness.runtime.sanitizer_xml import read_sanitizer_xml

Tool = Literal["memcheck", "racecheck", "initcheck", "synccheck"]
TOOLS: tuple[Tool, ...] = get_args(Tool)

ERROR_EXIT_CODE = 99
"""Exit code of a rank in which the tool found errors."""
TOPIC = "sanitizer"
"""Topic of notes about files that could not be read to their end."""

LAUNCHER_VARIABLE = "DSA_HARNESS_LAUNCHER_PID"
"""Environment variable with the process id of the launcher, where it is not a worker's parent."""

_CONNECTIONS_PER_RANK = 4
_DEFAULT_CONNECTIONS = 10
_WHEEL = "nvidia/cu13/compute-sanitizer/compute-sanitizer"


class SanitizerError(ValueError):
    """The tool cannot be used as asked."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """How ranks run under the tool.

    Attributes:
        tool: What is checked.
        folder: Receives one XML file per rank.
        ranks: Global ranks to wrap, empty for all of them.
        core_dump: Whether the first error also writes a CUDA core dump and ends the rank.
    """

    tool: Tool
    folder: str
    ranks: tuple[int, ...] = ()
    core_dump: bool = False

    def wraps(self, global_rank: int) -> bool:
        """Tell whether a rank runs under the tool."""
        return not self.ranks or global_rank in self.ranks

    def file(self, global_rank: int) -> Path:
        """Return the XML file of a rank."""
        return Path(self.folder) / f"rank{global_rank}.{self.tool}.xml"


def parse_sanitizer(text: str) -> tuple[Tool, tuple[int, ...]]:
    """Read ``TOOL`` or ``TOOL@RANKS``, such as ``memcheck@0,2``; no ranks means all.

    Raises:
        SanitizerError: naming what was expected.
    """
    name, at, ranks = text.partition("@")
    tool = next((tool for tool in TOOLS if tool == name), None)
    if tool is None:
        raise SanitizerError(
            f"--sanitizer {text}: expected one of {', '.join(TOOLS)}, found {name!r}"
        )
    numbers = [part.strip() for part in ranks.split(",")] if at else []
    if not all(number.isdecimal() for number in numbers):
        raise SanitizerError(
            f"--sanitizer {text}: expected ranks such as {tool}@0,2, found {ranks!r}"
        )
    return tool, tuple(sorted({int(number) for number in numbers}))


def find_sanitizer() -> str | None:
    """Return the program: on the path, in the toolkit, or from the wheel of the extra ``debug``."""
    found = shutil.which("compute-sanitizer")
    if found is not None:
        return found
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    places = [Path(home, "bin/compute-sanitizer"), *(Path(p, _WHEEL) for p in sys.path if p)]
    return next((str(path) for path in places if path.is_file()), None)


def wrapped_words(
    program: str, settings: Settings, global_rank: int, num_ranks: int, words: Sequence[str]
) -> list[str]:
    """Return the command of one rank: under the tool where it is asked for, else as it is.

    Args:
        program: Path of compute-sanitizer.
        settings: What to check, and on which ranks.
        global_rank: The rank whose command it is.
        num_ranks: Ranks of the node, all of which the tool connects to over local ports.
        words: The rank's own command.
    """
    if not settings.wraps(global_rank):
        return list(words)
    # NCCL kernels have been reported to read past tiny buffers of their own: not what is tested.
    return [
        program,
        *("--tool", settings.tool),
        *("--xml", "--save", str(settings.file(global_rank))),
        *("--error-exitcode", str(ERROR_EXIT_CODE)),
        *("--target-processes", "application-only"),
        *("--kernel-name-exclude", "kernel_substring=nccl"),
        *("--launch-timeout", "0"),
        *("--max-connections", str(max(_DEFAULT_CONNECTIONS, _CONNECTIONS_PER_RANK * num_ranks))),
        *(("--generate-coredump", "--coredump-behavior", "exit") if settings.core_dump else ()),
        *words,
    ]


def sanitizer_environment(settings: Settings, env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables to add: without them the tool cannot see overruns between tensors.

    torch's allocator cuts tensors out of large blocks, inside which every address is valid. A
    variable that the user has set stays.
    """
    wanted = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    if settings.tool not in ("memcheck", "initcheck"):
        return {}
    return {name: value for name, value in wanted.items() if name not in env}


def rank_words(settings: Settings, words: Sequence[str]) -> list[str]:
    """Return the command that the launcher starts on every rank (``torchrun --no-python``)."""
    ranks = ("--ranks", ",".join(map(str, settings.ranks))) if settings.ranks else ()
    dump = ("--core-dump",) if settings.core_dump else ()
    module = "harness.runtime.sanitizer"
    start = [sys.executable, "-m", module, "--tool", settings.tool, "--folder", settings.folder]
    return [*start, *ranks, *dump, "--", *words]


def launch_words(settings: Settings, words: Sequence[str]) -> list[str]:
    """Turn the command that starts a run (``commands.launch_words``) into one under the tool.

    Args:
        settings: What to check, and on which ranks.
        words: ``torchrun ... launch/run.py ...`` or ``srun ... python launch/run.py ...``.

    Raises:
        SanitizerError: if the command starts something else.
    """
    place = next((i for i, word in enumerate(words) if Path(word).name == "run.py"), None)
    if place is None:
        raise SanitizerError(f"expected a command that starts launch/run.py, found {list(words)}")
    start, rest = list(words[:place]), list(words[place + 1 :])
    if Path(start[0]).name == "torchrun":
        start.append("--no-python")
    else:
        start.pop()
    if "--isolation" in rest:
        at = rest.index("--isolation")
        del rest[at : at + 2]
    # The scenario has to run in the process that the tool watches.
    run = [sys.executable, words[place], *rest, "--isolation", "none"]
    return [*start, *rank_words(settings, run)]


def read_reports(
    settings: Settings, num_ranks: int
) -> tuple[tuple[SanitizerFinding, ...], tuple[NoteEvidence, ...]]:
    """Read the files of all wrapped ranks; a file that tells less than it should is noted."""
    findings: list[SanitizerFinding] = []
    notes = []
    for rank in filter(settings.wraps, range(num_ranks)):
        report = read_sanitizer_xml(settings.file(rank), tool=settings.tool, global_rank=rank)
        findings += report.findings
        if report.problem:
            text = f"{settings.tool} of rank {rank}: {settings.file(rank).name}: {report.problem}"
            notes.append(NoteEvidence(topic=TOPIC, text=text))
    return tuple(findings), tuple(notes)


def with_findings(
    attempt: Attempt,
    findings: Sequence[SanitizerFinding],
    notes: Sequence[NoteEvidence] = (),
) -> Attempt:
    """Return the attempt with the tool's findings; an error on the device is a memory fault.

    An attempt that did not run, or that the machine or the harness spoilt, keeps its verdict. One
    that was cut short by the end of the worker does not: the error explains that end.
    """
    told = replace(attempt, sanitizer=tuple(findings), notes=(*attempt.notes, *notes))
    first = next((finding for finding in findings if finding.is_fault), None)
    if first is None or attempt.verdict is Verdict.NOT_RUN:
        return told
    verdicts = {attempt.verdict, *attempt.secondary, Verdict.MEMORY_FAULT} - {Verdict.PASS}
    if attempt.cut_short is not None:
        verdicts.remove(Verdict.INFRASTRUCTURE)
        told = replace(told, cut_short=None)
    leading = primary(verdicts)
    if leading is not Verdict.MEMORY_FAULT:
        return replace(told, secondary=_ordered(verdicts - {leading}))
    cause = f"rank {first.global_rank}: {describe(first)}"
    fault = attempt.fault
    report = FaultReport(
        verdict=Verdict.MEMORY_FAULT,
        global_rank=first.global_rank,
        phase=fault.phase if fault is not None else None,
        cause=f"{cause}; {fault.cause}" if fault is not None else cause,
        victims=tuple(r for r in fault.victims if r != first.global_rank) if fault else (),
        collective=fault.collective if fault is not None else None,
    )
    return replace(told, verdict=leading, secondary=_ordered(verdicts - {leading}), fault=report)


def _ordered(verdicts: set[Verdict]) -> tuple[Verdict, ...]:
    return tuple(sorted(verdicts, key=lambda verdict: verdict.rank))


def describe(finding: SanitizerFinding) -> str:
    """Return a finding as one sentence."""
    parts = [f"{finding.tool}: {finding.text or finding.kind or 'unnamed error'}"]
    parts += [f"in {finding.kernel}"] if finding.kernel else []
    parts += [f"at {finding.source}"] if finding.source else []
    parts += [f"address {finding.address}"] if finding.address else []
    if finding.allocation and finding.allocation not in finding.text:
        parts.append(f"which {finding.allocation}")
    parts += [f"thread {finding.thread} of block {finding.block}"] if finding.thread else []
    return ", ".join(parts)


def _parsed(arguments: Sequence[str]) -> tuple[Settings, list[str]]:
    parser = argparse.ArgumentParser(prog="python -m harness.runtime.sanitizer")
    parser.add_argument("--tool", choices=TOOLS, required=True)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--ranks", default="", help="Global ranks, separated by commas; or all.")
    parser.add_argument("--core-dump", action="store_true")
    parser.add_argument("command", nargs="+")
    given = parser.parse_args(arguments)
    try:
        ranks = tuple(int(text) for text in given.ranks.split(",") if text.strip())
    except ValueError:
        parser.error(f"--ranks: expected numbers such as 0,3, found {given.ranks!r}")
    settings = Settings(
        tool=given.tool, folder=given.folder, ranks=ranks, core_dump=given.core_dump
    )
    return settings, given.command


def main(arguments: Sequence[str] | None = None, env: Mapping[str, str] = os.environ) -> NoReturn:
    """Become this rank's command.

    Raises:
        SanitizerError: if the tool is asked for here and not found.
    """
    settings, words = _parsed(sys.argv[1:] if arguments is None else arguments)
    rank = int(env.get("RANK", env.get("SLURM_PROCID", "0")))
    num_ranks = int(env.get("LOCAL_WORLD_SIZE", "1"))
    # Workers meet at a socket named after their parent, which for some of them is the tool.
    environment = {**env, LAUNCHER_VARIABLE: str(os.getppid())}
    if settings.wraps(rank):
        program = find_sanitizer()
        if program is None:
            raise SanitizerError(
                "compute-sanitizer was not found on the path, below CUDA_HOME or in the "
                "environment; install the extra 'debug' or the CUDA toolkit"
            )
        Path(settings.folder).mkdir(parents=True, exist_ok=True)
        # The kernel keeps this over exec: the tool must not outlive the launcher.
        die_with_parent()
        words = wrapped_words(program, settings, rank, num_ranks, words)
        environment |= sanitizer_environment(settings, env)
    os.execvpe(words[0], words, environment)  # noqa: S606 (a list, no shell)


if __name__ == "__main__":
    main()
