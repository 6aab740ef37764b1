"""The one bounds model: every gather and scatter of a modelled kernel is judged here.

A tensor is (allocation, base, shape, strides), all in elements. An address is a plain offset into
the allocation, so that huge geometries are judged by arithmetic and never allocated.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch

from harness.record.evidence import AddressFaultEvidence

Klass = Literal["wrong_row", "past_tensor", "past_allocation", "int32_overflow"]

INT32_MAX = 2**31 - 1
MAX_FINDINGS_PER_CALL = 64
"""Silent wrong-row reads come by the thousand; the first few say it all."""


class AddressFault(RuntimeError):  # noqa: N818 - the name hardware tools use
    """A modelled kernel formed an address it must not touch; a GPU would trap or corrupt memory.

    Attributes:
        evidence: What was touched, as a record.
    """

    def __init__(self, evidence: AddressFaultEvidence) -> None:
        """Describe the access in one line."""
        super().__init__(
            f"{evidence.kernel}: {evidence.operand} row {evidence.row} index {evidence.index} "
            f"is element {evidence.element_offset}, allowed [{evidence.allowed[0]}, "
            f"{evidence.allowed[1]}) ({evidence.klass})"
        )
        self.evidence = evidence


def wrap_int32(value: int) -> int:
    """Return what a 32-bit signed register holds after computing ``value``."""
    return (value + 2**31) % 2**32 - 2**31


@dataclass(frozen=True, kw_only=True, slots=True)
class Operand:
    """Where a tensor lies.

    Attributes:
        name: Operand name of the kernel, such as ``input_values``.
        allocation: Elements in the storage.
        base: Element offset of the tensor's first element.
        shape: Extents.
        strides: Element strides.
    """

    name: str
    allocation: int
    base: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor) -> Operand:
        """Describe a real tensor."""
        size = tensor.element_size()
        return cls(
            name=name,
            allocation=tensor.untyped_storage().nbytes() // size,
            base=int(tensor.storage_offset()),
            shape=tuple(tensor.shape),
            strides=tuple(tensor.stride()),
        )

    @classmethod
    def contiguous(cls, name: str, shape: tuple[int, ...]) -> Operand:
        """Describe a row-major tensor that fills its own allocation, without allocating it."""
        strides = [1] * len(shape)
        for axis in range(len(shape) - 2, -1, -1):
            strides[axis] = strides[axis + 1] * shape[axis + 1]
        total = strides[0] * shape[0] if shape else 1
        return cls(name=name, allocation=total, base=0, shape=shape, strides=tuple(strides))

    def offset(self, *coordinates: int) -> int:
        """Element offset of ``coordinates`` (which may lie outside the extents)."""
        pairs = zip(coordinates, self.strides, strict=True)
        return self.base + sum(index * stride for index, stride in pairs)

    @property
    def span(self) -> tuple[int, int]:
        """Inclusive lower and exclusive upper offset of the tensor's own elements."""
        if 0 in self.shape:
            return (self.base, self.base)
        reach = sum(
            (extent - 1) * stride for extent, stride in zip(self.shape, self.strides, strict=True)
        )
        return (self.base, self.base + reach + 1)


def classify(operand: Operand, offset: int, row_span: tuple[int, int]) -> Klass | None:
    """Name what is wrong with an access that must stay in ``row_span``; None when nothing is."""
    if row_span[0] <= offset < row_span[1]:
        return None
    if not 0 <= offset < operand.allocation:
        return "past_allocation"
    low, high = operand.span
    return "wrong_row" if low <= offset < high else "past_tensor"


@dataclass(kw_only=True, slots=True)
class Bounds:
    """Judge of one kernel call.

    Accesses inside the allocation but outside the row are what hardware does silently: they are
    recorded in ``findings``. Accesses outside the allocation, and offsets that a 32-bit register
    cannot hold, raise ``AddressFault``.

    Attributes:
        kernel: Wrapper name for the evidence.
        findings: Shared list of the namespace, appended to.
        limit: Findings this call may still add.
    """

    kernel: str
    findings: list[AddressFaultEvidence]
    limit: int = field(default=MAX_FINDINGS_PER_CALL)

    def evidence(
        self,
        operand: Operand,
        row: int,
        index: int,
        offset: int,
        allowed: tuple[int, int],
        klass: Klass,
    ) -> AddressFaultEvidence:
        """Build the record of one access."""
        return AddressFaultEvidence(
            kernel=self.kernel,
            operand=operand.name,
            row=row,
            index=index,
            element_offset=offset,
            allowed=allowed,
            klass=klass,
        )

    def touch(
        self, operand: Operand, *, row: int, index: int, offset: int, row_span: tuple[int, int]
    ) -> Klass | None:
        """Judge one access; return its class, or None when it is in the row.

        Raises:
            AddressFault: The access leaves the allocation.
        """
        klass = classify(operand, offset, row_span)
        if klass is None:
            return None
        if klass == "past_allocation":
            allowed = (0, operand.allocation)
            raise AddressFault(self.evidence(operand, row, index, offset, allowed, klass))
        if self.limit > 0:
            self.limit -= 1
            self.findings.append(self.evidence(operand, row, index, offset, row_span, klass))
        return klass

    def touch_run(
        self,
        operand: Operand,
        *,
        row: int,
        first_index: int,
        count: int,
        first_offset: int,
        row_span: tuple[int, int],
    ) -> None:
        """Judge ``count`` consecutive accesses: the first one outside the row and the last one.

        Raises:
            AddressFault: One of them leaves the allocation.
        """
        if count <= 0:
            return
        last = first_offset + count - 1
        if row_span[0] <= first_offset and last < row_span[1]:
            return
        outside = first_offset if first_offset < row_span[0] else max(first_offset, row_span[1])
        if first_offset < 0:
            outside = first_offset
        elif last >= operand.allocation:
            outside = max(first_offset, operand.allocation)
        self.touch(
            operand,
            row=row,
            index=first_index + outside - first_offset,
            offset=outside,
            row_span=row_span,
        )

    def touch_rows(self, operand: Operand, *, first_row: int, count: int) -> None:
        """Judge ``count`` whole rows (first axis) of a tensor; the first bad one is named.

        Raises:
            AddressFault: A row leaves the allocation.
        """
        if count <= 0 or (first_row >= 0 and first_row + count <= operand.shape[0]):
            return
        width = operand.strides[0]
        low, high = operand.span
        inside = (operand.allocation - operand.base) // max(width, 1)
        if first_row < 0:
            row = first_row
        elif first_row + count > inside:
            row = max(first_row, inside)
        else:
            row = max(first_row, operand.shape[0])
        offset = operand.base + row * width
        self.touch(operand, row=row, index=0, offset=offset, row_span=(low, high))

    def touch_int32(self, operand: Operand, *, row: int, index: int, offset: int) -> None:
        """Judge an offset that the kernel forms in a 32-bit register.

        Raises:
            AddressFault: The register holds another value than the arithmetic (int32_overflow).
        """
        if wrap_int32(offset) != offset:
            allowed = (0, INT32_MAX + 1)
            raise AddressFault(
                self.evidence(operand, row, index, wrap_int32(offset), allowed, "int32_overflow")
            )
