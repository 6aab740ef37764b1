"""Command line of a run, one parser for ``launch/run.py`` and ``dsa-harness run``."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from harness.record.verdict import ExitCode
from harness.runtime.inject import PROCESS_KINDS, SELECTION_KINDS, InjectionError, parse_injection
from harness.runtime.overrides import OverrideError, parse_overrides
from harness.runtime.profiler import ProfilerError, parse_profile
from harness.runtime.sanitizer import TOOLS, SanitizerError, parse_sanitizer
from harness.runtime.task import ENGINE
from harness.scenario.collectors import (
    ALL,
    COLLECTORS,
    DEFAULT,
    NONE,
    CollectorError,
    parse_collectors,
)

Isolation = Literal["scenario", "group", "none"]
Supervision = Literal["node", "worker"]

DUMP_BYTES = 64 * 2**20
"""Usual budget of a rank for the inputs of wrong selections, per attempt."""

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
        ids: File of scenario ids, one a line, None for all.
        isolation: None leaves the choice to the device.
        supervision: Who starts rank processes; None leaves the choice to the device.
        bare: Without the probe for CUDA errors at the end of each phase.
        core_dumps: With CUDA core dumps of ranks whose kernels fault.
        evidence: Optional collectors to run, as ``KIND[,KIND]``, None for the default.
        modelled: Modelled release of every scenario, as ``RELEASE[@ARCH]``, None for its own.
        overlay: Overlays added to every scenario with cuDNN kernels.
        resume: Run folder whose unfinished scenarios are run; everything else stands in its plan.
        repeat: Attempts of every scenario, None for its own number.
        jobs: How many scenarios may run at the same time; ``auto`` for as many as there are ranks
            for.
        dump_bytes: What each rank may write of the inputs of wrong selections on hardware.
        dump_all: To dump known, expected and modelled ones as well.
        sanitizer: compute-sanitizer's tool as ``TOOL[@RANKS]``, None for none.
        at_most: Attempts after which this start of the run ends without documents, None for all.
        folder_file: File that receives the path of the run folder.
        budget: Seconds after which no further scenario starts, None for no end.
        ranks_per_gpu: Ranks that share a device; above 1 gloo carries device tensors.
        profile: Profiler as ``nsys[@RANKS]``, None for none.
    """

    scenarios: tuple[str, ...] = ()
    keyword: str | None = None
    tags: tuple[str, ...] = ()
    ids: str | None = None
    out: str = "runs"
    name: str | None = None
    isolation: Isolation | None = None
    supervision: Supervision | None = None
    megatron: str | None = None
    inject: tuple[str, ...] = ()
    allow_mixed: bool = False
    bare: bool = False
    core_dumps: bool = False
    evidence: str | None = None
    modelled: str | None = None
    overlay: tuple[str, ...] = ()
    dry_run: bool = False
    resume: str | None = None
    repeat: int | None = None
    jobs: int | Literal["auto"] = 1
    sanitizer: str | None = None
    dump_bytes: int = DUMP_BYTES
    dump_all: bool = False
    at_most: int | None = None
    folder_file: str | None = None
    budget: int | None = None
    ranks_per_gpu: int = 1
    profile: str | None = None
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
    Flag(
        names=("--ids",),
        metavar="FILE",
        help="Only scenarios whose id stands in this file, one a line.",
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
    Flag(
        names=("--resume",),
        metavar="RUN",
        help="Finish what this run folder has not finished; takes no PATH and no other option but "
        "--jobs and --dry-run.",
    ),
    Flag(
        names=("--repeat",),
        metavar="N",
        help="Attempts of each scenario (default: its own `repeat`, which is 1); all are kept, and "
        "the worst decides.",
    ),
    Flag(
        names=("--jobs",),
        metavar="N|auto",
        help="Scenarios that run at the same time, each on ranks of its own (default: 1).",
    ),
    Flag(names=("--megatron",), metavar="PATH", help="Megatron-LM checkout (default: installed)."),
    Flag(
        names=("--inject",),
        metavar="KIND@RANK:PHASE[@SCENARIO]",
        many=True,
        help="Plant a fault (repeatable). Kinds: " + ", ".join(PROCESS_KINDS + SELECTION_KINDS),
    ),
    Flag(
        names=("--evidence",),
        metavar="KIND[,KIND]",
        help="Collect this beside what every verdict needs: "
        + ", ".join((*COLLECTORS, ALL, NONE, DEFAULT))
        + " (default: what is cheap, and what the scenario expects something of).",
    ),
    Flag(
        names=("--modelled",),
        metavar="RELEASE[@ARCH]",
        help="Model this release in every scenario with modelled cuDNN kernels, such as "
        "1.26.0@sm90.",
    ),
    Flag(
        names=("--overlay",),
        metavar="NAME",
        many=True,
        help="Switch this overlay on in every scenario with cuDNN kernels (repeatable).",
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
        names=("--ranks-per-gpu",),
        metavar="N",
        help="Let N ranks share each GPU, so that CP 4 or 8 runs on one (default: 1). NCCL takes "
        "one rank a device, so gloo carries their tensors, and the report says so.",
    ),
    Flag(
        names=("--profile",),
        metavar="nsys[@RANKS]",
        help="Run ranks under Nsight Systems, such as nsys@0; for times, not for verdicts. With "
        "`dsa-harness run` only; implies --isolation none.",
    ),
    Flag(
        names=("--sanitizer",),
        metavar="TOOL[@RANKS]",
        help="Run ranks under compute-sanitizer (" + ", ".join(TOOLS) + "), such as memcheck@0,2; "
        "without ranks all of them. With `dsa-harness run` only; implies --isolation none.",
    ),
    Flag(
        names=("--coredump", "--core-dumps"),
        field="core_dumps",
        help="With a GPU, have the driver write a core dump (without device memory) when a kernel "
        "faults, and read it with cuda-gdb.",
    ),
    Flag(
        names=("--dump-bytes",),
        metavar="N",
        help="Bytes that each rank may write of q, k, w of unexpected wrong selections on hardware "
        f"(default: {DUMP_BYTES}, 0 for none).",
    ),
    Flag(
        names=("--dump-all",),
        help="Dump q, k, w of known, expected and modelled wrong selections as well.",
    ),
    Flag(names=("--at-most",), metavar="N", hidden=True, help="Attempts in this start of the run."),
    Flag(
        names=("--budget",),
        metavar="SECONDS",
        help="Start no scenario after that time; the rest is not run, and --resume goes on.",
    ),
    Flag(names=("--folder-file",), metavar="FILE", hidden=True, help="Receives the run folder."),
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
    problems = _empty_paths(paths, values)
    if values["resume"] is not None:
        problems += _beside_resume(paths, values)
    elif not paths:
        problems.append(f"{prog}: no scenario given; add --scenario PATH (a file or a folder)")
    numbers = {"repeat": _number(values["repeat"], "--repeat", problems)}
    if values["jobs"] != "auto":
        numbers["jobs"] = _number(values["jobs"], "--jobs", problems, or_else=" or auto")
    numbers["at_most"] = _number(values["at_most"], "--at-most", problems)
    numbers["budget"] = _number(values["budget"], "--budget", problems)
    numbers["ranks_per_gpu"] = _number(values["ranks_per_gpu"], "--ranks-per-gpu", problems)
    numbers["dump_bytes"] = _number(values["dump_bytes"], "--dump-bytes", problems, least=0)
    problems += _sanitizer_problems(values) + _profile_problems(values)
    for text in values["inject"]:
        try:
            parse_injection(text)
        except InjectionError as error:
            problems.append(str(error))
    try:
        parse_collectors(values["evidence"] or DEFAULT)
    except CollectorError as error:
        problems.append(str(error))
    try:
        parse_overrides(values["modelled"], values["overlay"])
    except OverrideError as error:
        problems.append(str(error))
    if problems:
        raise UsageError(problems)
    fields: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in {**values, **numbers}.items()
        if value is not None
    }
    return Options(scenarios=tuple(paths), **fields)


_PATHS = ("ids", "megatron", "out", "resume")


def _empty_paths(paths: Sequence[str], values: Mapping[str, Any]) -> list[str]:
    """Refuse ``--out "$DIR"`` where the variable is not set: it would name the current folder."""
    given = [f.names[-1] for f in FLAGS if f.key in _PATHS and values[f.key] == ""]
    given += ["PATH"] if "" in paths else []
    return [f"{name}: the path is empty; is a variable of the shell unset?" for name in given]


_WITH_RESUME = ("resume", "jobs", "dry_run", "at_most", "folder_file", "budget")


def _sanitizer_problems(values: Mapping[str, Any]) -> list[str]:
    if values["sanitizer"] is None:
        return []
    try:
        parse_sanitizer(values["sanitizer"])
    except SanitizerError as error:
        return [str(error)]
    problems = []
    if values["isolation"] not in (None, "none"):
        problems.append(
            f"--sanitizer: expected --isolation none, found {values['isolation']}: the tool "
            "watches the worker's own process; leave --isolation out"
        )
    if values["jobs"] is not None:
        problems.append("--sanitizer: expected no --jobs: attempts run one at a time; leave it out")
    return problems


def _profile_problems(values: Mapping[str, Any]) -> list[str]:
    if values["profile"] is None:
        return []
    try:
        parse_profile(values["profile"])
    except ProfilerError as error:
        return [str(error)]
    problems = []
    if values["isolation"] not in (None, "none"):
        problems.append(
            f"--profile: expected --isolation none, found {values['isolation']}: the profiler "
            "watches the worker's own process; leave --isolation out"
        )
    if values["sanitizer"] is not None:
        problems.append("--profile: expected no --sanitizer beside it; run one after the other")
    return problems


def _beside_resume(paths: Sequence[str], values: Mapping[str, Any]) -> list[str]:
    """Refuse what the plan of the run has settled already."""
    given = [*(("PATH",) if paths else ())]
    given += [f.names[-1] for f in FLAGS if values[f.key] and f.key not in _WITH_RESUME]
    return [
        f"--resume {values['resume']}: expected no {word} beside it, since plan.json of the run "
        "says what is left to do; leave it out, or start a new run"
        for word in given
    ]


def _number(
    text: Any, flag: str, problems: list[str], *, least: int = 1, or_else: str = ""
) -> int | None:
    if text is None:
        return None
    if str(text).isdecimal() and int(text) >= least:
        return int(text)
    problems.append(f"{flag}: expected a number of at least {least}{or_else}, found {text!r}")
    return None


def _dashed(word: str) -> str:
    """Accept ``--dry_run`` for ``--dry-run``, as torchrun does."""
    if not word.startswith("--"):
        return word
    flag, equals, value = word.partition("=")
    return flag.replace("_", "-") + equals + value
