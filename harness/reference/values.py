"""Forward and backward values against a reference, element by element."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.record.evidence import ValueEvidence
from harness.reference.site import Site

_PIECE = 1 << 22
"""Elements compared at a time; they are upcast to fp64."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ValueComparison:
    """One value against its reference.

    Attributes:
        name: Such as ``attention_output`` or ``grad.query``.
        gradient: Whether it is a backward value.
        max_abs_diff: Greatest absolute difference; infinite for NaN or a wrong shape.
        max_rel_diff: Greatest difference over the reference's magnitude; infinite where that is 0.
        atol: Tolerated absolute difference.
        rtol: Tolerated part of the reference's magnitude, on top of ``atol``.
        num_mismatched: Elements that differ by more.
        num_elements: Elements compared.
        message: What differs and where; empty when nothing does.
        reason: Why the tolerance is what it is.
    """

    name: str
    gradient: bool
    max_abs_diff: float
    max_rel_diff: float
    atol: float
    rtol: float
    num_mismatched: int
    num_elements: int
    message: str
    reason: str

    @property
    def within(self) -> bool:
        """True when shapes agree and no element differs by more than the tolerance."""
        return not self.message

    def evidence(self, site: Site) -> ValueEvidence:
        """Return the record of this comparison."""
        return ValueEvidence(
            **site.fields(),
            name=self.name,
            gradient=self.gradient,
            max_abs_diff=self.max_abs_diff,
            max_rel_diff=self.max_rel_diff,
            tolerance_abs=self.atol,
            tolerance_rel=self.rtol,
            within=self.within,
            reason=self.reason,
        )


@torch.no_grad()
def compare_values(
    name: str,
    actual: Tensor,
    expected: Tensor,
    *,
    atol: float,
    rtol: float,
    reason: str,
    gradient: bool = False,
) -> ValueComparison:
    """Compare with ``|actual - expected| <= atol + rtol * |expected|``, in fp64.

    NaN equals nothing, not even NaN; an infinity equals itself.

    Args:
        name: Of the value.
        actual: Any shape and floating dtype.
        expected: Same shape; moved to the device of ``actual``.
        atol: Tolerated absolute difference, at least 0.
        rtol: Tolerated part of the reference's magnitude, at least 0.
        reason: Why these tolerances.
        gradient: Whether it is a backward value.

    Raises:
        ValueError: for a tolerance that is negative or not finite.
    """
    for label, value in (("atol", atol), ("rtol", rtol)):
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{name}: {label} must be finite and at least 0, found {value}")
    tally = _Tally()
    if actual.shape != expected.shape:
        tally.max_abs = tally.max_rel = math.inf
        message = (
            f"{name}: shapes differ, found {tuple(actual.shape)}, expected {tuple(expected.shape)}"
        )
    else:
        flat, target = actual.reshape(-1), expected.to(actual.device).reshape(-1)
        for start in range(0, flat.numel(), _PIECE):
            piece = slice(start, start + _PIECE)
            tally.add(flat[piece].double(), target[piece].double(), atol, rtol, start)
        message = tally.message(name, actual.shape, atol, rtol) if tally.mismatched else ""
    return ValueComparison(
        name=name,
        gradient=gradient,
        max_abs_diff=tally.max_abs,
        max_rel_diff=tally.max_rel,
        atol=atol,
        rtol=rtol,
        num_mismatched=tally.mismatched,
        num_elements=actual.numel(),
        message=message,
        reason=reason,
    )


class _Tally:
    """Greatest differences and their flat indices over pieces of a value."""

    def __init__(self) -> None:
        self.max_abs = 0.0
        self.max_rel = 0.0
        self.at_abs = 0
        self.at_rel = 0
        self.mismatched = 0

    def add(self, actual: Tensor, expected: Tensor, atol: float, rtol: float, start: int) -> None:
        equal = actual == expected
        diff = torch.where(equal, 0.0, (actual - expected).abs()).nan_to_num_(
            nan=math.inf, posinf=math.inf
        )
        size = expected.abs()
        # 0 / 0 is an element without any difference.
        relative = torch.where(equal, 0.0, diff / size).nan_to_num_(nan=math.inf, posinf=math.inf)
        allowed = (atol + rtol * size).nan_to_num_(nan=0.0, posinf=0.0)
        self.mismatched += int((diff > allowed).sum())
        for attribute, index, values in (
            ("max_abs", "at_abs", diff),
            ("max_rel", "at_rel", relative),
        ):
            place = int(values.argmax())
            greatest = float(values[place])
            if greatest > getattr(self, attribute):
                setattr(self, attribute, greatest)
                setattr(self, index, start + place)

    def message(self, name: str, shape: torch.Size, atol: float, rtol: float) -> str:
        """Say what differs, in the manner of ``torch.testing.assert_close``."""

        def at(flat: int) -> str:
            return str(tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), shape)))

        total = max(1, math.prod(shape))
        return (
            f"{name}: {self.mismatched} of {total} elements differ "
            f"({100 * self.mismatched / total:.1f}%)\n"
            f"Greatest absolute difference: {self.max_abs:.6g} at index {at(self.at_abs)} "
            f"(up to {atol:g} allowed)\n"
            f"Greatest relative difference: {self.max_rel:.6g} at index {at(self.at_rel)} "
            f"(up to {rtol:g} allowed)"
        )
