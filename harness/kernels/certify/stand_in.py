"""A model in the place of a device, so that the comparison itself can be tried without a GPU.

What it certifies is nothing, and its certificates say so.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch

from harness.kernels.namespace import modelled_flash_mla, modelled_namespace
from harness.kernels.releases import Arch

PLANTS = ("cell", "hang", "crash", "raise")
Plant = Literal["cell", "hang", "crash", "raise"]
_OTHER_SEED = 1
"""Another seed than the model's: picks and ties that are anybody's differ, as on a device."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StandIn:
    """What stands in.

    Attributes:
        cudnn_frontend: Release of the model.
        arch: Its architecture.
        defects: As in a scenario; ``as_released`` agrees with the model under test.
        plant: What is broken on purpose.
        at: Name of the case in which it is broken.
    """

    cudnn_frontend: str
    arch: Arch
    defects: Literal["as_released", "none"] | tuple[str, ...] = "as_released"
    plant: Plant | None = None
    at: str = ""


class Kernels:
    """Wrappers and FlashMLA behind one object, as the comparison calls them."""

    def __init__(self, wrappers: Any, flash_mla: Callable[..., Any] | None) -> None:
        """Keep both; without FlashMLA its cases are not compared."""
        self._wrappers = wrappers
        if flash_mla is not None:
            self.flash_mla_sparse_fwd = flash_mla

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrappers, name)


def modelled(spec: StandIn, *, seed: int = 0) -> Kernels:
    """Return a release's models as the comparison calls them."""
    namespace = modelled_namespace(
        cudnn_frontend=spec.cudnn_frontend, arch=spec.arch, defects=spec.defects, seed=seed
    )
    return Kernels(namespace, modelled_flash_mla(arch=spec.arch))


def standing_in(spec: StandIn, case_name: str) -> Kernels:
    """Return what stands in for the device in one case, broken where it is to be."""
    kernels = modelled(spec, seed=_OTHER_SEED)
    if spec.plant is None or spec.at != case_name:
        return kernels
    return Kernels(_Broken(kernels, spec.plant), None)


class _Broken:
    """Kernels of which every call goes wrong in one way."""

    def __init__(self, kernels: Kernels, plant: Plant) -> None:
        self._kernels = kernels
        self._plant = plant

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._kernels, name)

        def broken(*args: Any, **kwargs: Any) -> Any:
            if self._plant == "hang":
                time.sleep(3600.0)
            if self._plant == "crash":
                os.kill(os.getpid(), signal.SIGSEGV)
            if self._plant == "raise":
                raise ValueError("refused on purpose")
            return _one_cell_off(call(*args, **kwargs))

        return broken


def _one_cell_off(result: Any) -> Any:
    """Change one element of the first output; the smallest difference a kernel can make."""
    first = next(iter(result.values())) if isinstance(result, dict) else result[0]
    assert isinstance(first, torch.Tensor), "wrappers return tensors"
    flat = first.view(-1)
    flat[0] = flat[0] + 1 if bool(torch.isfinite(flat[0].float())) else 1
    return result
