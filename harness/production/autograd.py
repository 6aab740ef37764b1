"""Counts what Megatron's autograd functions on the DSA path return from backward.

Torch refuses too few gradients and drops empty ones that are too many, so that a list of inputs and
a list of gradients that have drifted apart may go unseen until the next input is added.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from harness.record.autograd import AutogradEvidence
from harness.reference.site import Site

_VARIANT = "megatron.core.transformer.experimental_attention_variant"
MODULES = ("dsa", "dsa_cudnn_kernels", "dsa_tilelang_kernels", "absorbed_mla")
"""Modules of the DSA path; autograd functions defined in them are watched."""


@dataclass(slots=True)
class GradientWatch:
    """Watches backward calls of one case.

    Attributes:
        site: Where evidence belongs, None before the first case.
    """

    site: Site | None = None
    _found: dict[str, AutogradEvidence] = field(default_factory=dict)

    def aim(self, site: Site) -> None:
        """Begin a case."""
        self.site = site
        self._found.clear()

    @contextlib.contextmanager
    def watching(self, functions: Iterable[type] | None = None) -> Iterator[None]:
        """Look at every backward of the functions, by default those of the build."""
        watched = list(own_functions() if functions is None else functions)
        saved = [(function, function.__dict__.get("backward")) for function in watched]
        for function in watched:
            function.backward = staticmethod(self._counted(function))  # type: ignore[attr-defined]
        try:
            yield
        finally:
            for function, backward in saved:
                if backward is None:
                    del function.backward  # type: ignore[attr-defined]
                else:
                    function.backward = backward  # type: ignore[attr-defined]

    def evidence(self) -> Iterator[AutogradEvidence]:
        """Yield what was seen since the case began, once."""
        yield from self._found.values()
        self._found.clear()

    def _counted(self, function: Any) -> Callable[..., Any]:
        original = function.backward
        names = list(inspect.signature(function.forward).parameters)[1:]

        @functools.wraps(original)
        def backward(ctx: Any, *given: Any) -> Any:
            result = original(ctx, *given)
            self._note(function.__name__, names, ctx, result)
            return result

        return backward

    def _note(self, function: str, names: list[str], ctx: Any, result: Any) -> None:
        assert self.site is not None, "a case was begun before its backward ran"
        gradients = result if isinstance(result, tuple) else (result,)
        needs = tuple(ctx.needs_input_grad)
        missing = tuple(
            names[place] if place < len(names) else f"input {place}"
            for place, needed in enumerate(needs)
            if needed and (place >= len(gradients) or gradients[place] is None)
        )
        found = AutogradEvidence(
            **self.site.fields(),
            function=function,
            calls=1,
            inputs=len(needs),
            gradients=len(gradients),
            missing=missing,
        )
        before = self._found.get(function)
        if before is not None:
            shown = found if before.right and not found.right else before
            found = replace(shown, calls=before.calls + 1)
        self._found[function] = found


def own_functions() -> list[type]:
    """Return the autograd functions that the build's DSA modules define."""
    found: list[type] = []
    for name in MODULES:
        if importlib.util.find_spec(f"{_VARIANT}.{name}") is None:
            # Branches of Megatron come without one backend or another.
            continue
        try:
            module = importlib.import_module(f"{_VARIANT}.{name}")
        except ImportError:
            # A build without this backend has no functions of it.
            continue
        for value in vars(module).values():
            is_function = isinstance(value, type) and issubclass(value, torch.autograd.Function)
            if is_function and value.__module__ == module.__name__:
                found.append(value)
    return found
