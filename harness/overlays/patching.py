"""Sets attributes of a build's modules and classes, and puts back exactly what was there."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.overlays.refusal import OverlayRefusedError

WRITTEN_FOR = "megatron-core 0.19.2"
VARIANT = "megatron.core.transformer.experimental_attention_variant"

_MISSING = object()


def module_of(overlay: str, module: str) -> Any:
    """Return a module that an overlay builds on.

    Raises:
        OverlayRefusedError: the build has no such module, or it cannot be imported.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise OverlayRefusedError(
            f"overlay {overlay}: expected the module {module}, found none that can be imported "
            f"({error}); the overlay was written for {WRITTEN_FOR}, use that or remove the overlay"
        ) from error


def found(overlay: str, module: str, attribute: str, parameters: Collection[str] = ()) -> Any:
    """Return a symbol that an overlay builds on.

    Args:
        overlay: Name of the overlay, for the message.
        module: Full name of the module.
        attribute: Attribute of it, ``Class.method`` for a method.
        parameters: Parameters that the symbol must take.

    Raises:
        OverlayRefusedError: the build has no such symbol, or it takes other arguments.
    """
    name = f"{module.rpartition('.')[2]}.{attribute}"
    try:
        symbol: Any = importlib.import_module(module)
        for part in attribute.split("."):
            symbol = getattr(symbol, part)
    except (ImportError, AttributeError) as error:
        raise OverlayRefusedError(
            f"overlay {overlay}: this Megatron has no {name}; the overlay was written for "
            f"{WRITTEN_FOR}, use that or remove the overlay"
        ) from error
    taken = inspect.signature(symbol).parameters if parameters else {}
    lacking = [parameter for parameter in parameters if parameter not in taken]
    if lacking:
        raise OverlayRefusedError(
            f"overlay {overlay}: expected {name} of this Megatron to take "
            f"{', '.join(lacking)}, found {', '.join(taken)}; the overlay was written for "
            f"{WRITTEN_FOR}, use that or remove the overlay"
        )
    return symbol


def argument_of(function: Any, name: str) -> Callable[[tuple[Any, ...], dict[str, Any]], Any]:
    """Return what finds an argument among those of a call, None where it is not given."""
    place = list(inspect.signature(function).parameters).index(name)

    def argument(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return args[place] if len(args) > place else kwargs.get(name)

    return argument


@dataclass(slots=True)
class Patches:
    """What one overlay has set so far.

    Attributes:
        overlay: Name of the overlay, for messages.
    """

    overlay: str
    _made: list[tuple[Any, str, Any, Any]] = field(default_factory=list)

    def put(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute of a module, a class or an object."""
        before = vars(owner).get(name, _MISSING)
        setattr(owner, name, value)
        # A class hands out functions, but holds staticmethod objects and the like.
        self._made.append((owner, name, vars(owner)[name], before))

    def put_item(self, owner: dict[str, Any], name: str, value: Any) -> None:
        """Set an entry of a dictionary such as ``sys.modules``."""
        self._made.append((owner, name, value, owner.get(name, _MISSING)))
        owner[name] = value

    def undo(self) -> None:
        """Put everything back, last first.

        Raises:
            OverlayRefusedError: something stands on top of what was set; nothing is changed then.
        """
        for owner, name, value, _before in self._made:
            if _held(owner).get(name, _MISSING) is not value:
                raise OverlayRefusedError(
                    f"overlay {self.overlay}: {_text(owner)}.{name} was replaced again since; "
                    "take overlays off in the reverse order of installing them"
                )
        while self._made:
            owner, name, _value, before = self._made.pop()
            _restore(owner, name, before)


def _held(owner: Any) -> Any:
    return owner if isinstance(owner, dict) else vars(owner)


def _restore(owner: Any, name: str, before: Any) -> None:
    if isinstance(owner, dict):
        if before is _MISSING:
            del owner[name]
        else:
            owner[name] = before
    elif before is _MISSING:
        delattr(owner, name)
    else:
        setattr(owner, name, before)


def _text(owner: Any) -> str:
    return str(getattr(owner, "__name__", type(owner).__name__))


_ON: set[str] = set()
"""Overlays that are on in this process."""


def installed_by(install: Callable[[Patches], None], overlay: str) -> Callable[[], None]:
    """Run an overlay's installation and return what takes it off; on an error nothing stays.

    Raises:
        OverlayRefusedError: the overlay is on already.
    """
    if overlay in _ON:
        raise OverlayRefusedError(
            f"overlay {overlay}: it is on in this process already; install it once, or remove the "
            "overlay that is there first"
        )
    patches = Patches(overlay)
    try:
        install(patches)
    except BaseException:
        patches.undo()
        raise
    _ON.add(overlay)

    off = False

    def undo() -> None:
        nonlocal off
        if not off:  # a second call is about nothing: the overlay may be on by another install
            patches.undo()
            _ON.discard(overlay)
            off = True

    return undo


@dataclass(frozen=True, kw_only=True, slots=True)
class Correction:
    """An overlay that corrects the build's own code, and leaves its kernels as they are.

    Attributes:
        name: Of the overlay.
        provides: Facts that hold of a build with it.
        unless: Fact of builds that need no such correction.
        does: What such a build does itself, behind "this Megatron".
        patch: Makes the correction.
    """

    name: str
    provides: Mapping[str, bool]
    unless: str
    does: str
    patch: Callable[[Patches], None]

    def check(self, facts: Mapping[str, object]) -> None:
        """Refuse builds that have the correction.

        Raises:
            OverlayRefusedError: when the overlay does not fit.
        """
        if facts.get(self.unless):
            raise OverlayRefusedError(
                f"overlay {self.name}: this Megatron {self.does}; remove the overlay"
            )

    def wrap(self, namespace: Any) -> Any:
        """Return the kernels as they are."""
        return namespace

    def install(self) -> Callable[[], None]:
        """Correct the loaded Megatron; returns what takes the correction out again."""
        return installed_by(self.patch, self.name)
