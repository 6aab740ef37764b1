"""Expansion of a ``matrix`` into named combinations. Names can be typed and stay as they are.

A name is made of the values, in the order of the file: ``id[cp4-cudnn1.32.0]``. Adding a value to
an axis renames nothing.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from harness.scenario.problems import NodePath

MAX_COMBINATIONS = 1000
"""Greatest number of scenarios of one file; more is a slip of the pen."""
MAX_LABEL = 28
"""Longest label of one value, in characters; longer ones become a hash."""

_SHORT = {
    "model": "",
    "level": "",
    "microbatches": "",
    "schedule": "",
    "overlays": "overlays-",
    "kernels.dsa_kernel_backend": "",
    "kernels.source": "",
    "kernels.modelled.cudnn_frontend": "cudnn",
    "kernels.modelled.arch": "",
    "kernels.score_chunk_bytes": "chunk",
    "parallel.context_parallel_size": "cp",
    "parallel.tensor_model_parallel_size": "tp",
    "parallel.cp_comm_type": "",
    "model.dsa_indexer_topk": "topk",
    "model.dsa_indexer_n_heads": "heads",
    "model.num_layers": "layers",
    "values.scores": "",
    "values.dtype": "",
    "reference.dtype": "reference-",
}
"""Dotted path to what stands before the value in a label; default is the last key and a dash."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Override:
    """One value that a combination sets.

    Attributes:
        alias: Dotted path as written.
        path: The path it stands for.
        value: Plain data.
        written_at: Where the value stands in the file.
        label: Its part of the scenario's name.
    """

    alias: str
    path: tuple[str, ...]
    value: Any
    written_at: NodePath
    label: str


Combination = tuple[Override, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Axes:
    """A validated ``matrix`` as plain data.

    Attributes:
        axes: Alias to its values, in the order of the file.
        include: Combinations to add.
        exclude: Partial combinations to leave out.
        leaves: Alias to the path it stands for.
    """

    axes: Mapping[str, list[Any]]
    include: list[dict[str, Any]]
    exclude: list[dict[str, Any]]
    leaves: Mapping[str, tuple[str, ...]]


class MatrixError(ValueError):
    """A matrix whose values are fine but whose combinations are not.

    Attributes:
        path: The part of the file to point at.
    """

    def __init__(self, path: NodePath, message: str) -> None:
        super().__init__(message)
        self.path = path


def expand(matrix: Axes) -> tuple[Combination, ...]:
    """Return all combinations in the order of the file, the included ones last.

    Raises:
        MatrixError: too many or no combinations, or an ``exclude`` that leaves out nothing.
    """
    num_combinations = len(matrix.include)
    if matrix.axes:
        product = 1
        for values in matrix.axes.values():
            product *= len(values)
        num_combinations += product
    if num_combinations > MAX_COMBINATIONS:
        raise MatrixError(
            ("matrix",),
            f"expands to {num_combinations} scenarios, more than {MAX_COMBINATIONS}; "
            "split the file or give fewer values",
        )
    combinations = [*_kept(matrix), *_included(matrix)]
    if not combinations:
        raise MatrixError(("matrix",), "leaves no combination; give at least one list of values")
    return tuple(combinations)


def _kept(matrix: Axes) -> Iterator[Combination]:
    if not matrix.axes:
        return
    used: set[int] = set()
    axes = [_axis(matrix, alias, values) for alias, values in matrix.axes.items()]
    for combination in itertools.product(*axes):
        values = {override.alias: override.value for override in combination}
        hits = {
            index
            for index, excluded in enumerate(matrix.exclude)
            if all(key in values and values[key] == value for key, value in excluded.items())
        }
        used |= hits
        if not hits:
            yield combination
    if unused := [index for index in range(len(matrix.exclude)) if index not in used]:
        raise MatrixError(
            ("matrix", "exclude", unused[0]), "leaves out nothing; remove it or correct its values"
        )


def _axis(matrix: Axes, alias: str, values: list[Any]) -> list[Override]:
    labels = [label(alias, value) for value in values]
    return [
        Override(
            alias=alias,
            path=matrix.leaves[alias],
            value=value,
            written_at=("matrix", alias, index),
            label=text if labels.count(text) == 1 else f"{text}.{_digest(value)}",
        )
        for index, (value, text) in enumerate(zip(values, labels, strict=True))
    ]


def _included(matrix: Axes) -> Iterator[Combination]:
    for index, entry in enumerate(matrix.include):
        yield tuple(
            Override(
                alias=alias,
                path=matrix.leaves[alias],
                value=value,
                written_at=("matrix", "include", index, alias),
                label=label(alias, value),
            )
            for alias, value in entry.items()
        )


def suffix(combination: Combination) -> str:
    """Return what a combination adds to the id, such as ``[cp4-cudnn1.32.0]``."""
    labels = "-".join(override.label for override in combination)
    return f"[{labels}]" if labels else ""


def label(alias: str, value: Any) -> str:
    """Name one value of an axis with characters that need no quoting in a shell."""
    last = alias.rpartition(".")[2]
    if isinstance(value, bool):
        return last if value else f"no_{last}"
    before = _SHORT.get(alias, f"{last}-")
    text = re.sub(r"[^A-Za-z0-9._+@]", "_", _text(alias, value))
    if len(text) > MAX_LABEL:
        text = f"{text[: MAX_LABEL - 9].rstrip('+._')}.{_digest(value)}"
    return before + text


def _text(alias: str, value: Any) -> str:
    if alias == "microbatches":
        return "_".join(_lengths(microbatch) for microbatch in value)
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, (list, dict)):
        return "+".join(str(item) for item in value) or "none"
    return "none" if value is None else str(value)


def _lengths(microbatch: Mapping[str, Any]) -> str:
    text = "+".join(str(length) for length in microbatch["sequences"])
    return f"{text}@cp{microbatch['cp']}" if microbatch.get("cp") else text


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:6]


def override_sections(
    sections: Mapping[str, Any], combination: Iterable[Override]
) -> dict[str, Any]:
    """Return a copy of plain sections with a combination's values set, whole sections first."""
    result = dict(sections)
    for override in sorted(combination, key=lambda o: len(o.path)):
        result = _replaced(result, override.path, override.value)
    return result


def _replaced(data: Mapping[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    head, *rest = path
    return {**data, head: _replaced(data.get(head, {}), tuple(rest), value) if rest else value}


def written_at(path: NodePath, combination: Iterable[Override]) -> NodePath:
    """Return where the value at ``path`` was written: in the matrix if a combination sets it."""
    for override in combination:
        length = len(override.path)
        if path[:length] == override.path:
            return (*override.written_at, *path[length:])
    return path
