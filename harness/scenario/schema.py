"""The whole scenario file, version 1: one pydantic model whose fields are the top-level keys."""

from __future__ import annotations

import functools
from typing import Annotated, Any, get_type_hints

from pydantic import AfterValidator, BaseModel, Discriminator, Field, Tag, TypeAdapter

from harness.scenario import call_sections as c
from harness.scenario import fields as f
from harness.scenario import search_sections
from harness.scenario import sections as s
from harness.scenario.matrix_schema import Matrix


def _name_or_mapping(value: object) -> str:
    return "mapping" if isinstance(value, (dict, BaseModel)) else "word"


ModelChoice = Annotated[
    Annotated[f.Word, Tag("word")] | Annotated[s.ModelMapping, Tag("mapping")],
    Discriminator(_name_or_mapping),
]


class ScenarioFile(f.Section):
    """A distributed test of the DSA indexer: one scenario, or with ``matrix`` a family of them."""

    id: Annotated[
        str,
        Field(
            pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*$", max_length=120
        ),
    ]
    """Name that can be typed, with ``/`` between its parts."""
    summary: f.Line
    """One sentence: what holds when the scenario passes."""
    source: list[f.Link] = Field(default=[])
    """Public links: report, pull request, document."""
    tags: Annotated[list[f.Word], AfterValidator(f.unique)] = Field(default=[])
    """Words to choose scenarios by (``-t``)."""
    model: ModelChoice
    """Name of a file in ``configs/models``, or a mapping, or a mapping with ``base``."""
    level: s.Level = "attention"
    """``scorer``: the dispatcher's hooks on synthetic inputs; ``attention``: DSAttention with
    real gathers; ``model``: whole layers with loss and backward; ``kernel``: one kernel wrapper
    called on its own."""
    kernels: s.Kernels = s.Kernels()
    overlays: f.Overlays = Field(default=[])
    """Corrections or perturbations to switch on."""
    parallel: s.Parallel = s.Parallel()
    microbatches: s.Microbatches
    """In order: the layout history."""
    schedule: s.Schedule | None = None
    """Such as [F0, F1, B0, B1]; default is forward then backward, in order."""
    values: s.Values = s.Values()
    training: s.Training = s.Training()
    graph: s.Graph = s.Graph()
    kernel_call: c.KernelCall = c.KernelCall()
    perturb: c.Perturb = c.Perturb()
    reference: s.Reference = s.Reference()
    compare: s.Compare = s.Compare()
    matrix: Matrix | None = None  # type: ignore[valid-type]
    """Dotted paths to lists of values; expands to one named scenario per combination."""
    expect: s.Expect = s.Expect()
    known: list[s.Known] = Field(default=[])
    published: list[s.Published] = Field(default=[])
    limits: s.Limits = s.Limits()
    inject: f.Injections = Field(default=[])
    """Faults to plant, as with ``--inject``: a faulty twin of another scenario."""
    search: search_sections.Search = search_sections.Search()
    repeat: Annotated[int, Field(ge=1, le=1000)] = 1
    """Attempts, for what comes and goes; all are kept, and the worst decides."""


REQUIRED = tuple(name for name, field in ScenarioFile.model_fields.items() if field.is_required())


@functools.cache
def key_adapter(key: str) -> TypeAdapter[Any]:
    """Validator of one top-level key, so that a fault in one hides none in another.

    The whole-file model would stop at the first level that fails, and rules across sections
    could not run over the sections that are fine.
    """
    return TypeAdapter(get_type_hints(ScenarioFile, include_extras=True)[key])
