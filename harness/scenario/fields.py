"""Field types that several sections of the scenario file share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    Tag,
)
from pydantic_core import PydanticCustomError, core_schema

from harness.scenario.names import (
    BEHAVIOURS,
    CUDNN_FRONTEND_RELEASES,
    DEFECTS,
    OVERLAYS,
    did_you_mean,
)

INT32_MAX = 2**31 - 1
"""Greatest value of a ``cu_seqlens`` entry, which Megatron and the kernels hold as int32."""


class Section(BaseModel):
    """A mapping of the scenario file: closed, and strict about types."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        # Only the command that writes the schema needs the source of these classes.
        from harness.scenario.attribute_docs import describe

        written = handler(schema)
        describe(cls, handler.resolve_ref_schema(written).get("properties", {}))
        return written


@dataclass(frozen=True, slots=True)
class OneOf:
    """Annotation: a text that must be a name of a table, so that the table stays in one place."""

    what: str
    names: tuple[str, ...]

    def check(self, value: str) -> str:
        """Return the name, or refuse it with the names there are."""
        if value in self.names:
            return value
        raise PydanticCustomError(
            "name_not_in_table",
            "no {what} named '{value}'{hint}; there are: {names}",
            {
                "what": self.what,
                "value": value[:40],
                "hint": did_you_mean(value, self.names),
                "names": ", ".join(self.names),
            },
        )

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"type": "string", "enum": list(self.names)}


def unique(values: list[Any]) -> list[Any]:
    """Refuse repeated entries of a list.

    Raises:
        ValueError: naming the first entry that repeats an earlier one.
    """
    first: dict[str, int] = {}
    for number, value in enumerate(values, start=1):
        # Values may be unhashable (lists, sections), so they are told apart by how they print.
        earlier = first.setdefault(repr(value), number)
        if earlier != number:
            raise ValueError(f"entry {number} repeats entry {earlier}; give it once")
    return values


def _word_or_list(value: object) -> str:
    return "list" if isinstance(value, (list, tuple)) else "word"


def _word_or_number(value: object) -> str:
    return "word" if isinstance(value, str) else "number"


WORD_OR_LIST = Discriminator(_word_or_list)
WORD_OR_NUMBER = Discriminator(_word_or_number)
WORD = Tag("word")
LIST = Tag("list")
NUMBER = Tag("number")
UNION_TAGS = frozenset({"word", "list", "number", "mapping"})
"""Parts that pydantic adds to an error's path for the chosen form; they name no key."""

Size = Annotated[int, Field(ge=1, le=INT32_MAX)]
"""A dimension or count of at least one."""
Length = Annotated[int, Field(ge=0, le=INT32_MAX)]
"""A number of tokens."""
GroupSize = Annotated[int, Field(ge=1, le=1024)]
"""Ranks of a parallel group; the bound keeps a typing slip from costing minutes of checks."""
Rank = Annotated[int, Field(ge=0)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Line = Annotated[str, Field(min_length=1, max_length=300, pattern=r"^[^\n]+$")]
"""One line of text."""
Link = Annotated[str, Field(pattern=r"^https?://\S+$")]
Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=60)]

AutoOrLengths = Annotated[
    Annotated[Literal["auto"], WORD] | Annotated[list[Length], LIST], WORD_OR_LIST
]
Ranks = Annotated[
    Annotated[Literal["all"], WORD]
    | Annotated[list[Rank], Field(min_length=1), AfterValidator(unique), LIST],
    WORD_OR_LIST,
]
Rows = Annotated[Annotated[Literal["all"], WORD] | Annotated[Size, NUMBER], WORD_OR_NUMBER]
EqualOrNumber = Annotated[
    Annotated[Literal["equal", "first_layer"], WORD] | Annotated[int, Field(ge=0), NUMBER],
    WORD_OR_NUMBER,
]
Release = Annotated[str, OneOf("modelled cudnn-frontend release", CUDNN_FRONTEND_RELEASES)]
Overlay = Annotated[str, OneOf("overlay", tuple(OVERLAYS))]
Overlays = Annotated[list[Overlay], AfterValidator(unique)]
Defect = Annotated[str, OneOf("defect", tuple(DEFECTS))]
Behaviour = Annotated[str, OneOf("faulty behaviour", tuple(BEHAVIOURS))]
Arch = Literal["sm90", "sm100"]
Injection = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*@(0|[1-9][0-9]*):[a-z]+$")]
"""``KIND@rank:phase``; ``harness.runtime.inject`` knows the kinds."""
Injections = Annotated[list[Injection], AfterValidator(unique)]
Step = Annotated[str, Field(pattern=r"^[FB](0|[1-9][0-9]*)$")]
"""``F`` or ``B`` and the index of a microbatch."""
