"""The suite file: one pydantic model whose fields are its keys."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from harness.scenario import fields as f
from harness.scenario.select import by_id


def _expression(text: str) -> str:
    by_id(text, named="")
    return text


class SuiteFile(f.Section):
    """A named choice of scenarios, to be given wherever a scenario file can be given."""

    suite: f.Word
    """Name of the suite; this key is what tells a suite from a scenario."""
    summary: f.Line
    """One sentence: what holds when the suite passes."""
    source: list[f.Link] = Field(default=[])
    """Public links: report, pull request, document."""
    scenarios: Annotated[list[f.Line], Field(min_length=1), AfterValidator(f.unique)]
    """Scenario files, folders of them, and other suites. A path is looked for beside this file
    first, then in the project's root folder."""
    select: Annotated[f.Line, AfterValidator(_expression)] | None = None
    """Only scenarios whose id meets this expression (that of ``-k``)."""
    tags: Annotated[list[f.Word], AfterValidator(f.unique)] = Field(default=[])
    """Only scenarios that carry all of these tags (as with ``-t``)."""
