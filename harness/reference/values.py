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
        max_bound_part: Greatest difference over what is tolerated at its element: above 1 it is
            too great, and far below 1 the tolerance is loose.
        atol: Tolerated absolute difference; where each element has its own, that of the element of
            ``max_bound_part``.
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
    max_bound_part: float
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
    atol: float | Tensor,
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
        atol: Tolerated absolute difference, at least 0: one number, or one for each element,
            shaped like ``expected``.
        rtol: Tolerated part of the reference's magnitude, at least 0.
        reason: Why these tolerances.
        gradient: Whether it is a backward value.

    Raises:
        ValueError: for a tolerance that is negative or not finite.
    """
    bounds = atol if isinstance(atol, Tensor) else torch.tensor(atol, dtype=torch.float64)
    _check_bounds(name, "atol", bounds)
    _check_bounds(name, "rtol", torch.as_tensor(rtol))
    tally = _Tally(bounds, rtol)
    if actual.shape != expected.shape:
        tally.max_abs = tally.max_rel = tally.max_part = math.inf
        message = (
            f"{name}: shapes differ, found {tuple(actual.shape)}, expected {tuple(expected.shape)}"
        )
    else:
        flat, target, limits = (
            t.to(actual.device).expand(actual.shape).reshape(-1) for t in (actual, expected, bounds)
        )
        for start in range(0, flat.numel(), _PIECE):
            piece = slice(start, start + _PIECE)
            tally.add(flat[piece].double(), target[piece].double(), limits[piece].double(), start)
        message = tally.message(name, actual.shape) if tally.mismatched else ""
    return ValueComparison(
        name=name,
        gradient=gradient,
        max_abs_diff=tally.max_abs,
        max_rel_diff=tally.max_rel,
        max_bound_part=tally.max_part,
        atol=tally.atol,
        rtol=rtol,
        num_mismatched=tally.mismatched,
        num_elements=actual.numel(),
        message=message,
        reason=reason,
    )


def _check_bounds(name: str, label: str, bounds: Tensor) -> None:
    wrong = bounds[~(torch.isfinite(bounds) & (bounds >= 0))]
    if wrong.numel():
        raise ValueError(
            f"{name}: {label} must be finite and at least 0, found {float(wrong.flatten()[0])}"
        )


class _Tally:
    """Greatest differences and their flat indices over pieces of a value."""

    def __init__(self, bounds: Tensor, rtol: float) -> None:
        self.max_abs = 0.0
        self.max_rel = 0.0
        self.max_part = 0.0
        self.at_abs = 0
        self.at_rel = 0
        self.at_part = 0
        self.rtol = rtol
        self.elementwise = bounds.dim() > 0
        self.atol = float(bounds.max()) if bounds.numel() else 0.0
        self.mismatched = 0

    def add(self, actual: Tensor, expected: Tensor, atol: Tensor, start: int) -> None:
        equal = actual == expected
        diff = torch.where(equal, 0.0, (actual - expected).abs()).nan_to_num_(
            nan=math.inf, posinf=math.inf
        )
        size = expected.abs()
        allowed = (atol + self.rtol * size).nan_to_num_(nan=0.0, posinf=0.0)
        self.mismatched += int((diff > allowed).sum())
        # 0 / 0 is an element without any difference.
        self._keep("abs", diff, start)
        self._keep("rel", torch.where(equal, 0.0, diff / size), start)
        place = self._keep("part", torch.where(equal, 0.0, diff / allowed), start)
        if place is not None:
            self.atol = float(atol[place])

    def _keep(self, what: str, values: Tensor, start: int) -> int | None:
        """Keep the greatest value so far; return its place in the piece if it is a new one."""
        values = values.nan_to_num(nan=math.inf, posinf=math.inf)
        place = int(values.argmax())
        greatest = float(values[place])
        if greatest <= getattr(self, f"max_{what}"):
            return None
        setattr(self, f"max_{what}", greatest)
        setattr(self, f"at_{what}", start + place)
        return place

    def message(self, name: str, shape: torch.Size) -> str:
        """Say what differs, in the manner of ``torch.testing.assert_close``."""

        def at(flat: int) -> str:
            return str(tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), shape)))

        total = max(1, math.prod(shape))
        bound = "" if self.elementwise else f" (up to {self.atol:g} allowed)"
        lines = [
            f"{name}: {self.mismatched} of {total} elements differ "
            f"({100 * self.mismatched / total:.1f}%)",
            f"Greatest absolute difference: {self.max_abs:.6g} at index {at(self.at_abs)}{bound}",
            f"Greatest relative difference: {self.max_rel:.6g} at index {at(self.at_rel)} "
            f"(up to {self.rtol:g} allowed)",
        ]
        if self.elementwise:
            lines.append(
                f"Greatest difference over its own bound: {self.max_part:.6g} at index "
                f"{at(self.at_part)} (up to {self.atol:g} absolute allowed there)"
            )
        return "\n".join(lines)
