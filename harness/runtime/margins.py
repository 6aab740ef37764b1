"""Tensors between poisoned margins: writes past an end are found, reads past it give poison.

A sanitizer sees every access but changes timing and needs a wrapped process; margins cost a fill
and a comparison. They miss what lies further away than the margin, and a write of the poison
itself. Works on any device torch has.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from harness.kernels.addresses import AddressFault
from harness.record.evidence import AddressFaultEvidence

MARGIN_BYTES = 4096
"""Length of each margin; a multiple of every alignment that kernels ask for."""

_FLOAT_BYTE = 0xFF
"""Repeated, a NaN in every floating-point format torch has, 8-bit ones included."""
_INTEGER_BYTE = 0xA5
"""Repeated, a large negative number that is no index and no -1."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Damage:
    """Overwritten bytes of one margin.

    Attributes:
        side: ``before`` or ``after`` the tensor.
        first: Offset of the first one from the tensor's first byte; negative before it.
        num_bytes: How many bytes differ.
    """

    side: str
    first: int
    num_bytes: int


class GuardedTensor:
    """A contiguous tensor inside a buffer of its own.

    Attributes:
        name: What a fault calls it, such as ``topk_indices``.
        tensor: The tensor, of the shape and dtype asked for.
    """

    def __init__(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        *,
        device: torch.device | str = "cpu",
        margin_bytes: int = MARGIN_BYTES,
    ) -> None:
        """Allocate and poison; the tensor itself holds poison too.

        Raises:
            ValueError: if the margin does not keep the tensor aligned.
        """
        if margin_bytes <= 0 or margin_bytes % 256:
            raise ValueError(f"margin_bytes: expected a multiple of 256, found {margin_bytes}")
        self.name = name
        self._byte = _FLOAT_BYTE if dtype.is_floating_point else _INTEGER_BYTE
        num_bytes = torch.Size(shape).numel() * dtype.itemsize
        self._start, self._end = margin_bytes, margin_bytes + num_bytes
        self._buffer = torch.full(
            (self._end + margin_bytes,), self._byte, dtype=torch.uint8, device=device
        )
        self.tensor = self._buffer[self._start : self._end].view(dtype).view(shape)

    @classmethod
    def copy_of(
        cls, name: str, tensor: torch.Tensor, *, margin_bytes: int = MARGIN_BYTES
    ) -> GuardedTensor:
        """Return a guarded contiguous copy of an input."""
        shape = tuple(tensor.shape)
        made = cls(name, shape, tensor.dtype, device=tensor.device, margin_bytes=margin_bytes)
        made.tensor.copy_(tensor)
        return made

    def damage(self) -> tuple[Damage, ...]:
        """Return what was overwritten in each margin; waits for the device."""
        sides = (
            ("before", self._buffer[: self._start], -self._start),
            ("after", self._buffer[self._end :], self._end - self._start),
        )
        found = []
        for side, margin, offset in sides:
            (places,) = torch.nonzero(margin != self._byte, as_tuple=True)
            if len(places):
                first = int(places[0]) + offset
                found.append(Damage(side=side, first=first, num_bytes=len(places)))
        return tuple(found)

    def check(self, kernel: str) -> None:
        """Raise a memory fault when a margin is damaged.

        Args:
            kernel: What ran since the margins were made.

        Raises:
            AddressFault: naming the element that was written outside the tensor.
        """
        for found in self.damage():
            element = found.first // self.tensor.element_size()
            width = self.tensor.shape[-1] if self.tensor.dim() else 1
            row, index = divmod(element, width) if width else (0, element)
            raise AddressFault(
                AddressFaultEvidence(
                    kernel=kernel,
                    operand=self.name,
                    row=row,
                    index=index,
                    element_offset=element,
                    allowed=(0, self.tensor.numel()),
                    klass="past_tensor",
                )
            )
