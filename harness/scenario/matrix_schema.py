"""The ``matrix`` key: a closed, typed mapping from dotted leaf paths to lists of values.

The model is made from the section models, one aliased field per leaf path, so that a value in a
matrix obeys exactly the constraints of the key it stands for.
"""

from __future__ import annotations

from typing import Annotated, Any, get_type_hints

from pydantic import AfterValidator, BaseModel, Field, create_model

from harness.scenario import call_sections as c
from harness.scenario import fields as f
from harness.scenario import sections as s

_SECTIONS: dict[str, type[BaseModel]] = {
    "model": s.ModelFields,
    "kernels": s.Kernels,
    "parallel": s.Parallel,
    "values": s.Values,
    "training": s.Training,
    "graph": s.Graph,
    "kernel_call": c.KernelCall,
    "perturb": c.Perturb,
    "reference": s.Reference,
    "compare": s.Compare,
    "expect": s.Expect,
    "limits": s.Limits,
}
_WHOLE: dict[str, Any] = {
    "model": f.Word,
    "level": s.Level,
    "overlays": f.Overlays,
    "inject": f.Injections,
    "microbatches": s.Microbatches,
    "schedule": s.Schedule,
}
"""Top-level keys that a matrix may replace as a whole."""


def _walk(prefix: tuple[str, ...], model: type[BaseModel]) -> dict[tuple[str, ...], Any]:
    found: dict[tuple[str, ...], Any] = {}
    for name, hint in get_type_hints(model, include_extras=True).items():
        if name not in model.model_fields or (prefix, name) == (("model",), "source"):
            continue
        if isinstance(hint, type) and issubclass(hint, BaseModel):
            found |= _walk((*prefix, name), hint)
        else:
            found[*prefix, name] = hint
    return found


def _leaves() -> dict[tuple[str, ...], Any]:
    found: dict[tuple[str, ...], Any] = {(name,): hint for name, hint in _WHOLE.items()}
    for section, model in _SECTIONS.items():
        found |= _walk((section,), model)
    return found


_HINTS = {".".join(path): hint for path, hint in _leaves().items()}
LEAVES = {".".join(path): path for path in _leaves()}
"""Dotted path as written in a file to the path it stands for."""


def _field_name(alias: str) -> str:
    return alias.replace(".", "__")


def _axis(hint: Any) -> Any:
    return Annotated[list[hint], Field(min_length=1), AfterValidator(f.unique)]


def _aliased(make: Any) -> dict[str, Any]:
    # The default marks a key that is not given; it is no value one may write.
    return {
        _field_name(alias): (make(hint), Field(default=None, alias=alias))
        for alias, hint in _HINTS.items()
    }


def _create_combination() -> type[f.Section]:
    return create_model(
        "Combination",
        __base__=f.Section,
        __doc__="One value for each of some dotted paths.",
        **_aliased(lambda hint: hint),
    )


def _create_matrix(combination: Any) -> type[f.Section]:
    combinations = list[combination]
    return create_model(
        "Matrix",
        __base__=f.Section,
        __doc__="Dotted paths to lists of values; all combinations run, in the order given.",
        include=(combinations, Field(default=[], description="Combinations to add.")),
        exclude=(
            combinations,
            Field(default=[], description="Combinations to leave out, in full or in part."),
        ),
        **_aliased(_axis),
    )


Matrix = _create_matrix(_create_combination())
