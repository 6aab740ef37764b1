"""Overlay ``graph_warnings``: say that packed DSA under CUDA graphs is not supported yet.

The public contract of https://github.com/NVIDIA/Megatron-LM/pull/6206: such configurations stay
constructible, and warn. With context parallelism above 1, or Dynamic CP at any configured size,
every CUDA-graph mode but ``none`` warns once per configuration, whatever the backend and the
captured modules. megatron-core 0.19.2 is silent. A configuration does not know whether its batches
will be packed, so that unpacked ones are warned of as well.

In a training job, before the configuration is built::

    from harness.overlays import graph_warnings
    undo = graph_warnings.install()
"""

from __future__ import annotations

import functools
import importlib
import warnings
from collections.abc import Callable
from typing import Any

from harness.overlays.patching import Correction, Patches, found
from harness.overlays.refusal import OverlayRefusedError

NAME = "graph_warnings"
_CONFIG = "megatron.core.transformer.transformer_config"
_DYNAMIC = ("dynamic_context_parallel", "hybrid_context_parallel")
"""Names of the switch for Dynamic CP, over builds."""


def install() -> Callable[[], None]:
    """Have configurations warn in this process.

    Returns:
        A function that takes the correction out again.

    Raises:
        OverlayRefusedError: when the configuration has no CUDA-graph mode or DSA, or warns itself.
    """
    return OVERLAY.install()


def _install(patches: Patches) -> None:
    config = found(NAME, _CONFIG, "TransformerConfig")
    names = set(getattr(config, "__dataclass_fields__", ()))
    needed = {"cuda_graph_impl", "experimental_attention_variant", "context_parallel_size"}
    if needed - names:
        raise OverlayRefusedError(
            f"overlay {NAME}: expected the configuration of this Megatron to have "
            f"{', '.join(sorted(needed - names))}, found none; use a build with packed DSA, or "
            "remove the overlay"
        )
    OVERLAY.check({"warns_packed_cp_graphs": _warns(importlib.import_module(_CONFIG))})
    patches.put(config, "__post_init__", _warning(config.__post_init__))


def _warns(module: Any) -> bool:
    """Whether the configuration's source speaks of packed DSA under graphs."""
    with open(module.__file__, encoding="utf-8") as source:
        lines = [line.lower() for line in source if not line.lstrip().startswith("#")]
    return any("packed dsa" in line and "graph" in line for line in lines)


def _warning(finish: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(finish)
    def finished(self: Any) -> None:
        finish(self)
        text = due_warning(self)
        if text is not None:
            warnings.warn(text, UserWarning, stacklevel=4)

    return finished


def due_warning(config: Any) -> str | None:
    """Return the warning that a configuration is due, None for none.

    Args:
        config: A ``TransformerConfig`` that has been checked.
    """
    impl = getattr(config, "cuda_graph_impl", "none") or "none"
    if impl == "none" or config.experimental_attention_variant != "dsa":
        return None
    dynamic = any(bool(getattr(config, name, False)) for name in _DYNAMIC)
    if not dynamic and config.context_parallel_size <= 1:
        return None
    spread = "Dynamic CP" if dynamic else f"context_parallel_size {config.context_parallel_size}"
    return (
        f"cuda_graph_impl {impl!r} with packed DSA and {spread} is experimental: capture and "
        "replay of packed DSA layers under CUDA graphs are not supported yet."
    )


OVERLAY = Correction(
    name=NAME,
    provides={"warns_packed_cp_graphs": True},
    unless="warns_packed_cp_graphs",
    does="warns of packed DSA under CUDA graphs itself",
    patch=_install,
)
"""The overlay as the harness's table holds it."""
