"""Command line of a run, one parser for ``launch/run.py`` and ``dsa-harness run``."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from harness.record.verdict import ExitCode
from harness.runtime.inject import PROCESS_KINDS, SELECTION_KINDS, InjectionError, parse_injection
from harness.runtime.task import ENGINE

Isolation = Literal["scenario", "group", "none"]
Supervision = Literal["node", "worker"]

JUDGE = "harness.runtime.judge"
"""Module with ``judge_attempt`` and ``conclude``."""


class UsageError(ValueError):
    """The command line or what it names cannot be used.

    Attributes:
        problems: One line per problem, each saying what to change.
        exit_code: ``USAGE``, or ``NOTHING_RAN`` where all is well and nothing was selected.
    """

    def __init__(self, problems: Sequence[str], exit_code: ExitCode = ExitCode.USAGE) -> None:
        """Keep the problems in order."""
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)
        self.exit_code = exit_code


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """A parsed command line.

    Attributes:
        scenarios: Files and folders of scenarios.
        keyword: ``-k`` expression over scenario ids, None for all.
        tags: ``-t`` tags, all of which a scenario must carry.
        isolation: None leaves the choice to the device.
        supervision: Who starts rank processes; None leaves the choice to the device.
        bare: Without the probe for CUDA errors at the end of each phase.
        core_dumps: With CUDA core dumps of ranks whose kernels fault.
    """

    scenarios: tuple[str, ...]
    keyword: str | None = None
    tags: tuple[str, ...] = ()
    out: str = "runs"
    name: str | None = None
    isolation: Isolation | None = None
    supervision: Supervision | None = None
    megatron: str | None = None
    inject: tuple[str, ...] = ()
    allow_mixed: bool = False
    bare: bool = False
    core_dumps: bool = False
    dry_run: bool = False
    engine: str = ENGINE
    judge: str = JUDGE


@dataclass(frozen=True, kw_only=True, slots=True)
class Flag:
    """One flag of a run; argparse (torchrun entry) and click (``dsa-harness run``) are built of it.

    Attributes:
        names: Spellings; the last one names the field of ``Options`` unless ``field`` does.
        metavar: Name of the value, None for a switch.
        many: May be given several times.
        hidden: Left out of ``--help``: seams for tests of the runtime itself.
    """

    names: tuple[str, ...]
    help: str
    field: str = ""
    metavar: str | None = None
    choices: tuple[str, ...] | None = None
    many: bool = False
    hidden: bool = False

    @property
    def key(self) -> str:
        """Field of ``Options``."""
        return self.field or self.names[-1].lstrip("-").replace("-", "_")


FLAGS = (
    Flag(
        names=("-k",),
        field="keyword",
        metavar="EXPR",
        help="Only scenarios whose id matches, such as 'zigzag and not cp8'.",
    ),
    Flag(
        names=("-t", "--tag"),
        field="tags",
        metavar="TAG",
        many=True,
        help="Only scenarios that carry this tag (repeatable: all of them).",
    ),
    Flag(names=("--out",), metavar="DIR", help="Folder that holds runs (default: runs)."),
    Flag(names=("--name",), metavar="NAME", help="Name of the run (default: from the first path)."),
    Flag(names=("--dry-run",), help="Show what would run, and write nothing."),
    Flag(
        names=("--isolation",),
        metavar="KIND",
        choices=("scenario", "group", "none"),
        help="New processes for each scenario (default on CPU), shared by compatible scenarios "
        "(group, default on CUDA), or none: in the workers themselves, for sanitizers and "
        "profilers.",
    ),
    Flag(
        names=("--supervision",),
        metavar="WHO",
        choices=("node", "worker"),
        help="Who starts rank processes: one leader per node (default on CPU), or each worker its "
        "own (default on CUDA).",
    ),
    Flag(names=("--megatron",), metavar="PATH", help="Megatron-LM checkout (default: installed)."),
    Flag(
        names=("--inject",),
        metavar="KIND@RANK:PHASE[@SCENARIO]",
        many=True,
        help="Plant a fault (repeatable). Kinds: " + ", ".join(PROCESS_KINDS + SELECTION_KINDS),
    ),
    Flag(
        names=("--allow-mixed",),
        help="With a GPU, let a missing FlashMLA or Transformer Engine be stood in for.",
    ),
    Flag(
        names=("--bare",),
        help="With a GPU, do not wait for it at the end of each phase: an error is then found "
        "later, and a race that waiting hides may show.",
    ),
    Flag(
        names=("--core-dumps",),
        help="With a GPU, have the driver write a core dump (without device memory) when a kernel "
        "faults, and read it with cuda-gdb.",
    ),
    Flag(names=("--engine",), metavar="MODULE:FUNCTION", hidden=True, help="What runs on a rank."),
    Flag(names=("--judge",), metavar="MODULE", hidden=True, help="What computes verdicts."),
)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError([f"{self.prog}: {message}; see --help"])


def build_parser(prog: str) -> argparse.ArgumentParser:
    """Return the parser of the torchrun entry."""
    parser = _Parser(
        prog=prog,
        description="Run scenarios over real ranks and write one typed verdict for each.",
        epilog="Flags are also read with underscores. Exit codes: "
        + ", ".join(f"{int(code)} {code.meaning}" for code in ExitCode if code <= 6),
        allow_abbrev=False,
    )
    parser.add_argument("paths", nargs="*", metavar="PATH", help="Scenario files or folders.")
    parser.add_argument(
        "--scenario", nargs="+", action="extend", default=[], metavar="PATH", help="The same."
    )
    for flag in FLAGS:
        text = argparse.SUPPRESS if flag.hidden else flag.help
        kind: dict[str, Any] = {"action": "store_true"}
        if flag.metavar is not None:
            kind = {"metavar": flag.metavar, "choices": flag.choices}
            kind |= {"action": "append", "default": []} if flag.many else {}
        parser.add_argument(*flag.names, dest=flag.key, help=text, **kind)
    return parser


def parse_options(argv: Sequence[str], prog: str) -> Options:
    """Parse the command line of the torchrun entry.

    Raises:
        UsageError: with one line per problem.
        SystemExit: after ``--help``.
    """
    found = vars(build_parser(prog).parse_args([_dashed(word) for word in argv]))
    return make_options((*found.pop("paths"), *found.pop("scenario")), found, prog)


def make_options(paths: Sequence[str], values: Mapping[str, Any], prog: str) -> Options:
    """Make options of parsed flags; a flag that was not given is None, False or empty.

    Raises:
        UsageError: with one line per problem.
    """
    problems = []
    if not paths:
        problems.append(f"{prog}: no scenario given; add --scenario PATH (a file or a folder)")
    for text in values["inject"]:
        try:
            parse_injection(text)
        except InjectionError as error:
            problems.append(str(error))
    if problems:
        raise UsageError(problems)
    fields: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in values.items()
        if value is not None
    }
    return Options(scenarios=tuple(paths), **fields)


def _dashed(word: str) -> str:
    """Accept ``--dry_run`` for ``--dry-run``, as torchrun does."""
    if not word.startswith("--"):
        return word
    flag, equals, value = word.partition("=")
    return flag.replace("_", "-") + equals + value
