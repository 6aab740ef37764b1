"""Named models in ``configs/models``, and models given in a scenario."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from harness.record.codec import from_jsonable, to_jsonable
from harness.scenario.files import MODELS_DIR, SUFFIXES, read_text, shown
from harness.scenario.messages import explain
from harness.scenario.names import did_you_mean
from harness.scenario.problems import Problem, has_errors
from harness.scenario.sections import ModelFields
from harness.scenario.spec import ModelSpec
from harness.scenario.yaml12 import parse


class ModelChoiceError(ValueError):
    """A scenario names a model that there is not, or that cannot be read."""


@dataclass(kw_only=True, slots=True)
class ModelLibrary:
    """The model files of a folder, each read once.

    Attributes:
        folder: Holds ``NAME.yaml``.
        problems: What is wrong with the files read so far.
    """

    folder: Path = MODELS_DIR
    problems: list[Problem] = field(default_factory=list)
    _read: dict[str, ModelSpec | None] = field(default_factory=dict)
    _resolved: dict[str, ModelSpec] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """Names a scenario may use."""
        return tuple(sorted(p.stem for p in self.folder.glob("*") if p.suffix in SUFFIXES))

    def get(self, name: str) -> ModelSpec:
        """Return a named model.

        Raises:
            ModelChoiceError: there is no such file, or it has errors (see ``problems``).
        """
        if name not in self._read:
            if name not in self.names:
                raise ModelChoiceError(
                    f"no model named '{name}' in {self.folder.name}/"
                    f"{did_you_mean(name, self.names)}; there are: "
                    f"{', '.join(self.names) or 'none'}"
                )
            self._read[name] = self._load(name)
        model = self._read[name]
        if model is None:
            raise ModelChoiceError(f"model '{name}' has errors in its own file")
        return model

    def _load(self, name: str) -> ModelSpec | None:
        path = next(
            path for suffix in SUFFIXES if (path := self.folder / f"{name}{suffix}").exists()
        )
        text = read_text(path)
        if isinstance(text, Problem):
            self.problems.append(text)
            return None
        document, problems = parse(text, shown(path))
        self.problems += problems
        if has_errors(problems):
            return None
        try:
            fields = ModelFields.model_validate(document.data)
        except ValidationError as error:
            self.problems += explain(error, document, root=ModelFields)
            return None
        given = fields.model_dump(mode="json", exclude_unset=True)
        return from_jsonable(ModelSpec, {"name": name, **given})

    def resolve(self, choice: str | Mapping[str, Any], changes: Mapping[str, Any]) -> ModelSpec:
        """Return the model a scenario means.

        Args:
            choice: A name, or the fields of a ``model`` mapping that were given.
            changes: Fields set by a matrix.

        Raises:
            ModelChoiceError: from ``get``.
        """
        key = json.dumps([choice, changes])
        if key not in self._resolved:
            self._resolved[key] = self._resolve(choice, changes)
        return self._resolved[key]

    def _resolve(self, choice: str | Mapping[str, Any], changes: Mapping[str, Any]) -> ModelSpec:
        given = {"base": choice} if isinstance(choice, str) else dict(choice)
        base_name, name = given.pop("base", None), given.pop("name", None)
        base = ModelSpec(name="inline") if base_name is None else self.get(base_name)
        merged = {**to_jsonable(base), **given, **changes}
        model = from_jsonable(ModelSpec, merged)
        if name is None and base_name is not None and model != base:
            name = f"{base.name}+"
        return model if name is None else from_jsonable(ModelSpec, {**merged, "name": name})
