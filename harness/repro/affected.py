"""Is a build affected by the faults that hang on versions: on which path, why, what to change.

Answered from facts of the build and of the kernels (read from their sources) and from the release
table, without a GPU and without running anything. Facts go before versions: forks and back-ports
change one and leave the other.
"""

from __future__ import annotations

import ast
import importlib.util
import re
from dataclasses import dataclass, field
from pathlib import Path

from harness.kernels.detect import installed_kernels
from harness.kernels.releases import ARCHES, RELEASES, Arch, Release
from harness.production.locate import BuildError, find_build
from harness.production.probes import build_facts
from harness.repro.version_faults import FAULTS, Answer, Facts, VersionFault

FACTS, VERSIONS, HARDWARE, MODEL = (
    "predicted from facts",
    "predicted from versions",
    "measured on hardware",
    "modelled run",
)
"""What an answer rests on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Image:
    """What is asked about.

    Attributes:
        megatron_core: Version, None when there is no usable build.
        no_build: Why there is no usable build.
        cudnn_frontend: Version, None when it is not installed.
        arches: Architectures that the answer is for: one where it is known.
        accepts_offsets: Whether the installed forward wrapper takes ``q_causal_offsets``, read from
            its source; None where that cannot be read, or another release is asked about.
    """

    megatron_core: str | None
    no_build: str = ""
    cudnn_frontend: str | None
    arches: tuple[Arch, ...] = ARCHES
    build: dict[str, bool] = field(default_factory=dict)
    accepts_offsets: bool | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """The answer for one fault.

    Attributes:
        affected: ``yes``, ``no`` or ``unknown``.
        kind: ``fault`` (wrong, crash, hang) or ``limit`` (slow, or not served).
        path: On which path.
        why: The facts that decide.
        change: What to change.
        basis: What the answer rests on.
        scenario: Scenario file that shows it.
    """

    name: str
    title: str
    affected: str
    kind: str
    path: str
    why: str
    change: str
    basis: str
    link: str
    scenario: str


def look_at(
    megatron: str | None = None, *, cudnn_frontend: str | None = None, arch: Arch | None = None
) -> Image:
    """Read the facts of a build and of the kernels, without importing either.

    Args:
        megatron: Checkout, None for the installed megatron-core.
        cudnn_frontend: Release to ask about instead of the installed one.
        arch: Architecture, None for that of this machine, or for both where there is no GPU.
    """
    version, facts, why = None, {}, ""
    try:
        build = find_build(megatron)
        version, facts = build.version, build_facts(build)
    except BuildError as error:
        why = str(error)
    asked = cudnn_frontend or installed_kernels().cudnn_frontend
    return Image(
        megatron_core=version,
        no_build=why,
        cudnn_frontend=asked,
        arches=(arch,) if arch is not None else _arches(),
        build=facts,
        accepts_offsets=None if cudnn_frontend else _accepts_offsets(),
    )


def _arches() -> tuple[Arch, ...]:
    from harness.runtime.fingerprint import collect

    found = {gpu.capability.partition(".")[0] for gpu in collect().gpus}
    known: dict[str, Arch] = {"9": "sm90", "10": "sm100"}
    return tuple(known[major] for major in sorted(found & known.keys())) or ARCHES


def _accepts_offsets() -> bool | None:
    """Read the installed wrapper's parameters from its source: importing it takes seconds."""
    spec = importlib.util.find_spec("cudnn")
    if spec is None or spec.origin is None:
        return None
    for path in sorted(Path(spec.origin).parent.glob("*/indexer_forward*/*.py")):
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (OSError, SyntaxError, ValueError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node.name == "indexer_forward_wrapper":
                arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                return "q_causal_offsets" in {argument.arg for argument in arguments}
    return None


def findings(image: Image) -> tuple[Finding, ...]:
    """Answer for every fault of the table."""
    release, note = nearest_release(image.cudnn_frontend)
    return tuple(_finding(fault, image, release, note) for fault in FAULTS)


def nearest_release(version: str | None) -> tuple[Release | None, str]:
    """Return the newest known release that is not newer, and what to say where it is another."""
    if version is None:
        return None, ""
    if version in RELEASES:
        return RELEASES[version], ""
    older = [name for name in RELEASES if _numbers(name) <= _numbers(version)]
    if not older:
        return None, f"{version} is older than the first release with these kernels"
    return RELEASES[older[-1]], f"{version} is not in the table: taken as {older[-1]}, unconfirmed"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def _finding(fault: VersionFault, image: Image, release: Release | None, note: str) -> Finding:
    answers = {arch: _answer(fault, image, release, arch) for arch in image.arches}
    affected, why = _together(answers)
    paths = {answer.path or fault.path for answer in answers.values()}
    basis = FACTS if fault.facts else VERSIONS
    if note and fault.kernels:
        why = f"{why}; {note}"
        affected = "unknown" if affected == "no" and not fault.facts else affected
    return Finding(
        name=fault.name,
        title=fault.title,
        affected=affected,
        kind=fault.kind,
        path="; or ".join(sorted(paths)),
        why=why,
        change=fault.change if affected != "no" else "nothing",
        basis=basis,
        link=fault.link,
        scenario=fault.scenario,
    )


def _answer(fault: VersionFault, image: Image, release: Release | None, arch: Arch) -> Answer:
    if image.megatron_core is None and fault.caller:
        return Answer(None, image.no_build or "no megatron-core with the packed DSA path")
    if release is None and fault.kernels:
        if image.cudnn_frontend is None:
            return Answer(None, "nvidia-cudnn-frontend is not installed")
        return Answer(False, f"nvidia-cudnn-frontend {image.cudnn_frontend} has no DSA kernels")
    facts = Facts(
        build=image.build, release=release, arch=arch, accepts_offsets=image.accepts_offsets
    )
    return fault.judge(facts)


def _together(answers: dict[Arch, Answer]) -> tuple[str, str]:
    """One answer of those for each architecture."""
    words = {True: "yes", False: "no", None: "unknown"}
    found = {arch: words[answer.affected] for arch, answer in answers.items()}
    reasons = {answer.why.replace(f" on {arch}", "") for arch, answer in answers.items()}
    if len(set(found.values())) == 1 and len(reasons) == 1:
        return next(iter(found.values())), reasons.pop()
    told = "; ".join(f"{arch}: {found[arch]}, {answers[arch].why}" for arch in answers)
    if len(set(found.values())) == 1:
        return next(iter(found.values())), told
    return "unknown", f"hangs on the GPU: {told}"
