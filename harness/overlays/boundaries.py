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


class Boundaries:
    """A boundary list as it is now, as a part of a key.

    Two are equal for one tensor that was not written in between: another tensor is another list,
    whatever it holds, since nobody may look at its values without waiting for the device. The
    tensor is kept, so that no other one can take its identity.
    """

    __slots__ = ("_tensor", "version")

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        self.version = _version(tensor)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Boundaries)
            and self._tensor is other._tensor
            and self.version == other.version
        )

    def __hash__(self) -> int:
        return hash((id(self._tensor), self.version))

    def __repr__(self) -> str:
        # Shown in records, which are the same for every run: nothing of an address.
        return "no version" if self.version is None else f"version {self.version}"


def _version(tensor: torch.Tensor) -> int | None:
    # Tensors made under torch.inference_mode have none, so that nothing tells when they change.
    return None if tensor.is_inference() else int(tensor._version)
