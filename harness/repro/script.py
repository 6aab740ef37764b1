"""A scenario as one Python file that runs without the harness: what a maintainer pastes.

The file holds the case's layout, geometry and seeds, an exact reference, the comparison with ties
understood and, where kernels are modelled, the few lines of model that the case needs. Everything
that the case does not need is left out of it, so that it can be read.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from harness.record.result import ScenarioResult
from harness.repro.refusals import check_scenario, check_verdict
from harness.scenario.spec import Scenario

_TEMPLATES = Path(__file__).parent / "templates"
_WIDTH = 92
_LONGEST_NAME = 60


def script_text(scenario: Scenario, *, result: ScenarioResult | None = None) -> str:
    """Return the text of the script.

    Args:
        scenario: What to reproduce.
        result: What a run showed of it; its verdict is told at the top.

    Raises:
        ExportRefusedError: for what a single file cannot show, with what to do.
    """
    check_scenario(scenario)
    if result is not None:
        check_verdict(result.verdict)
    about = tuple(_about(scenario, result))
    if scenario.level == "kernel":
        from harness.repro.script_kernel import kernel_context

        values, name = kernel_context(scenario), "kernel.py.j2"
    else:
        from harness.repro.script_selection import selection_context

        values, name = selection_context(scenario), "selection.py.j2"
    text = _template(name).render(
        summary="\n".join(textwrap.wrap(_plain(scenario.summary), _WIDTH)) or "A case.",
        about=about,
        expected=str(scenario.expect.verdict),
        real=scenario.kernels.source == "hardware",
        modelled_allowed=scenario.kernels.source != "hardware",
        **values,
    )
    return "\n".join(line.rstrip() for line in text.splitlines()).rstrip() + "\n"


def script_name(scenario: Scenario) -> str:
    """Return the name of the file, safe on any file system and to type."""
    words = re.sub(r"[^a-z0-9]+", "_", scenario.id.lower()).strip("_")
    return f"repro_{words[:_LONGEST_NAME].strip('_') or 'case'}.py"


def kernels_in_words(scenario: Scenario) -> str:
    """Say which kernels the script runs."""
    kernels = scenario.kernels
    if kernels.dsa_kernel_backend == "none":
        return "no fused kernels: Megatron's own torch path"
    modelled = kernels.modelled
    name = f"nvidia-cudnn-frontend {modelled.cudnn_frontend} on {modelled.arch}"
    if kernels.source == "hardware":
        return "the installed kernels, on a GPU"
    return f"MODELLED {name}, in plain torch, written into this file"


def needs_in_words(scenario: Scenario) -> str:
    """Say which packages the script imports, and which of them with ``--real`` alone."""
    found = ["torch"] if scenario.level == "kernel" else ["torch", "megatron-core"]
    if scenario.kernels.dsa_kernel_backend == "cudnn":
        is_modelled = scenario.kernels.source != "hardware"
        found.append(f"nvidia-cudnn-frontend{' (--real alone)' if is_modelled else ''}")
    return ", ".join(found)


def _about(scenario: Scenario, result: ScenarioResult | None) -> Iterator[str]:
    """Lines of the module docstring behind the summary."""
    name = script_name(scenario)
    wanted = str(scenario.expect.verdict)
    if result is not None:
        yield f"Seen: {result.verdict}. Expected of a right build: {wanted}."
    else:
        yield f"Expected of a right build: {wanted}."
    yield from _wrapped(f"Kernels: {kernels_in_words(scenario)}.")
    cudnn = scenario.kernels.dsa_kernel_backend == "cudnn"
    if cudnn and scenario.kernels.source != "hardware":
        yield from _wrapped(
            "The model follows the public sources and reports of that release. It shows what its "
            "contract implies for the caller; it proves nothing about the kernel. With --real the "
            "same case runs on the installed kernels of this machine's GPU."
        )
    yield ""
    yield from _wrapped(f"Needs: {needs_in_words(scenario)}. Nothing else is imported.")
    yield f"Run:   python {name}{' [--real]' if cudnn else ''}"
    yield from _wrapped(
        "Exit:  0 the verdict is the expected one, 1 it is another. The verdict is the last line."
    )
    for number, link in enumerate(scenario.source):
        yield f"{'Links: ' if number == 0 else '       '}{_plain(link)}"
    yield from _wrapped(f"Case:  {_plain(scenario.id)}, content hash {scenario.content_hash}")


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, subsequent_indent="       " if ":  " in text[:8] else "")


def _plain(text: str) -> str:
    """Text that cannot leave the docstring it stands in."""
    kept = "".join(c if c.isprintable() else " " for c in text)
    return kept.replace("\\", "/").replace('"""', "'''").strip().rstrip('"')


@cache
def _template(name: str) -> Template:
    # No HTML: the result is Python.
    environment = Environment(  # noqa: S701
        loader=FileSystemLoader(_TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(name)
