"""The values of a boundary list on the host, read once for each list.

A list is kept on the very tensor it was read from, together with the tensor's version, so that it
ends with the microbatch and a list that is written again (as a graph's static one is) is read
again. What writes past torch's version counter (``.data``, foreign kernels) goes unnoticed.
"""

from __future__ import annotations

import torch

_KEPT = "_dsa_boundaries_on_host"


def on_host(boundaries: torch.Tensor) -> torch.Tensor:
    """Return prefix sums as a CPU tensor; a device waits at the first call for a list alone.

    Args:
        boundaries: ``[sequences + 1]`` integers on any device.
    """
    if boundaries.device.type == "cpu":
        return boundaries
    version = _version(boundaries)
    kept = getattr(boundaries, _KEPT, None)
    if kept is not None and version is not None and kept[0] == version:
        values: torch.Tensor = kept[1]
        return values
    values = boundaries.to("cpu")
    if version is not None:
        setattr(boundaries, _KEPT, (version, values))
    return values


def version_of(boundaries: torch.Tensor) -> int:
    """Return the tensor's version, -1 for one that torch keeps no version of."""
    version = _version(boundaries)
    return -1 if version is None else version


def _version(tensor: torch.Tensor) -> int | None:
    # Tensors made under torch.inference_mode have none, so that nothing tells when they change.
    return None if tensor.is_inference() else int(tensor._version)
