"""Reference values that know how far a right kernel may be from them.

A bound in parts of a tensor's greatest element is blind to rows of small values, and cries wolf at
elements whose terms cancel. So every reference value comes with the *scale* of its rounding error:
the root of the sum of the squares of the terms that are added up in it. Rounding each term by a
relative u, in either direction, moves the sum by about u times that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.reference.tolerances import Tolerance, Tolerances
from harness.reference.values import ValueComparison, compare_values


@dataclass(frozen=True, kw_only=True, slots=True)
class Expected:
    """One reference value.

    Attributes:
        value: Any shape, fp32 or fp64.
        scale: Broadcasts to ``value``: typical size of the sum of the terms, of either sign.
        slack: Broadcasts to ``value``: absolute difference allowed on top, where a rounding error
            decides between two results (the kink of relu); None where there is no such place.
        length: Terms added up in an element, at most.
        partials: Partial sums that a collective adds up in the value's own format.
    """

    value: Tensor
    scale: Tensor
    slack: Tensor | None = None
    length: int = 1
    partials: int = 1

    def take(self, index: Tensor) -> Expected:
        """Return the rows (first dimension) at ``index``; all but a scalar scale have them."""

        def rows(tensor: Tensor) -> Tensor:
            return tensor[index.to(tensor.device)] if tensor.dim() else tensor

        return Expected(
            value=rows(self.value),
            scale=rows(self.scale),
            slack=None if self.slack is None else rows(self.slack),
            length=self.length,
            partials=self.partials,
        )

    def absolute(self, tolerance: Tolerance) -> Tensor:
        """Return the absolute bound, shaped like ``value``; finite and at least 0."""
        growing = tolerance.of_scale_sqrt_length * math.sqrt(self.length)
        growing += tolerance.of_scale_sqrt_partials * math.sqrt(self.partials - 1)
        bound = tolerance.without_scale(self.value) + (tolerance.of_scale + growing) * self.scale
        if growing:
            # Terms of one sign make running sums as great as the value itself.
            bound = bound + growing * self.value.abs()
        if self.slack is not None:
            bound = bound + self.slack
        return bound.expand(self.value.shape)


def sum_partials(parts: Iterable[Expected]) -> Expected:
    """Add up the parts that ranks contribute to one value, as a collective does.

    Parts are taken one after the other, so that a generator keeps one of them in memory.

    Raises:
        ValueError: when there are none.
    """
    total: Expected | None = None
    for part in parts:
        total = part if total is None else _added(total, part)
    if total is None:
        raise ValueError("there are no partial sums to add up; give one for each rank")
    return total


def _added(one: Expected, other: Expected) -> Expected:
    slacks = [part.slack for part in (one, other) if part.slack is not None]
    return Expected(
        value=one.value + other.value,
        scale=torch.hypot(one.scale, other.scale),
        slack=torch.stack(slacks).sum(0) if slacks else None,
        length=one.length + other.length,
        partials=one.partials + other.partials,
    )


def compare_expected(
    name: str, actual: Tensor, expected: Expected, *, dtype: str, tolerances: Tolerances
) -> ValueComparison:
    """Compare a value with its reference, within the bounds that the tolerance file gives.

    Args:
        name: Such as ``attention_output`` or ``grad.query``; the latter kind counts as a gradient.
        actual: Same shape as ``expected.value``.
        expected: The reference.
        dtype: Format that the kernel under test computes in, ``bf16`` or ``fp32``.
        tolerances: Of ``load_tolerances``.

    Raises:
        ToleranceError: when there are no bounds for this name and dtype.
    """
    tolerance = tolerances.of(name, dtype)
    return compare_values(
        name,
        actual,
        expected.value,
        atol=expected.absolute(tolerance),
        rtol=tolerance.rtol,
        reason=tolerance.reason,
        gradient=name.partition(".")[0] == "grad",
    )
