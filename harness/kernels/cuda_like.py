"""A CPU tensor that answers ``is_cuda`` with True, so that a caller takes its CUDA branches.

Values, autograd and ``save_for_backward`` are those of the CPU tensor underneath. Results of
operators keep the type; factories such as ``torch.arange(device=x.device)`` give plain tensors,
which is why the kernel models wrap their outputs like their inputs.
"""

from __future__ import annotations

import torch


class CudaLike(torch.Tensor):
    """Plain CPU tensor subclass that claims to be on a CUDA device.

    ``device`` still says ``cpu``: anything that really moves data must keep working.
    """

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        """True, whatever the device."""
        return True


def cuda_like(tensor: torch.Tensor) -> CudaLike:
    """View ``tensor`` as ``CudaLike``; shares storage and keeps the autograd graph."""
    return tensor.as_subclass(CudaLike)
