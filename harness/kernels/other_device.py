"""A CPU tensor that claims to be on a second CUDA device, for calls with a device mixed up.

Compiled kernels check at their launch boundary that all tensors are on one device, and refuse
(deduced; on a GPU a first call shows it).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from harness.kernels.cuda_like import CudaLike


class OtherDevice(CudaLike):
    """Like ``CudaLike``, but on ``cuda:1``: what a caller compares devices with sees a difference.

    Results of operators keep the type, so the tensor stays the odd one out wherever it goes.
    """

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The second device, whether the machine has one or not."""
        return torch.device("cuda", 1)


def on_other_device(tensor: torch.Tensor) -> OtherDevice:
    """View ``tensor`` as ``OtherDevice``; shares storage and keeps the autograd graph."""
    return tensor.as_subclass(OtherDevice)


def check_devices(name: str, arguments: Mapping[str, Any]) -> None:
    """Refuse tensors on several devices, as the launch boundary of every kernel does.

    Raises:
        ValueError: naming each device with its tensors.
    """
    found: dict[torch.device, list[str]] = {}
    for argument, value in arguments.items():
        if isinstance(value, torch.Tensor):
            found.setdefault(value.device, []).append(argument)
    if len(found) > 1:
        where = "; ".join(f"{', '.join(names)} on {device}" for device, names in found.items())
        raise ValueError(f"{name} takes tensors of one device, found {where}")
