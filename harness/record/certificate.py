"""Certificates: what a kernel model and the real kernel of a release said to the same calls."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

CERTIFICATE_VERSION = 1


class CaseState(enum.StrEnum):
    """What a call showed of model and kernel together."""

    AGREES = "agrees"
    DIFFERS = "differs"
    NOT_SHOWN = "not_shown"
    """The model forms an illegal address and the kernel returned: no proof either way."""
    NOT_COMPARED = "not_compared"


@dataclass(frozen=True, kw_only=True, slots=True)
class CellDifference:
    """One cell of a case on which model and kernel differ.

    Attributes:
        cell: Its name, such as ``scores``.
        model: What the model gives, in words or numbers.
        kernel: What the kernel gives.
        num_different: Elements that differ, and how many there are.
        num_elements: Elements compared.
        first: Index of the first one, None for cells without elements.
        greatest: Greatest difference in units of the tolerance, None where none is defined.
    """

    cell: str
    model: str
    kernel: str
    num_different: int = 1
    num_elements: int = 1
    first: tuple[int, ...] | None = None
    greatest: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class CertifiedCase:
    """One call, given to the model and to the kernel.

    Attributes:
        name: Wrapper, rule and parameters, such as ``indexer_forward/limits/ratio2/6x40``.
        wrapper: Name in the namespace.
        basis: ``contract``, or ``read``, ``reported`` or ``deduced`` for a known defect: how the
            model's answer is known.
        rule: Name of the rule or defect that the case is about.
        model: What the model did: ``returned``, ``raised ValueError``, ``illegal address`` ...
        kernel: The same of the kernel.
        reason: Why nothing was compared, or what an unshown fault would have been.
        seconds: Time of the kernel's call with what surrounds it; compilation included.
    """

    name: str
    wrapper: str
    basis: str
    rule: str
    state: CaseState
    model: str
    kernel: str
    differences: tuple[CellDifference, ...] = ()
    reason: str = ""
    seconds: float = 0.0

    def __post_init__(self) -> None:
        """Refuse a case that differs in nothing, or agrees in spite of a difference."""
        if (self.state is CaseState.DIFFERS) != bool(self.differences):
            raise ValueError(f"case {self.name}: state {self.state} does not go with differences")


@dataclass(frozen=True, kw_only=True, slots=True)
class Certificate:
    """All cases of one release on one architecture.

    Attributes:
        cudnn_frontend: Installed release that ran.
        arch: ``sm90`` or ``sm100``: architecture of the model.
        capability: Compute capability of the device, such as ``9.0``.
        device: Name of the device.
        stand_in: What stood in for the device in a trial of the comparison itself; empty for a
            real device. Such a certificate certifies nothing.
        versions: Package to version (torch, CUDA, driver, the CuTe DSL, FlashMLA).
        facts: Probed facts of the namespace.
        date: UTC, ISO 8601.
        complete: False where the comparison was stopped before its last case.
    """

    schema_version: int = CERTIFICATE_VERSION
    cudnn_frontend: str
    arch: str
    capability: str
    device: str
    stand_in: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    facts: dict[str, bool | int | str | None] = field(default_factory=dict)
    date: str
    complete: bool
    cases: tuple[CertifiedCase, ...]

    @property
    def counts(self) -> dict[CaseState, int]:
        """Cases by state, in the order of ``CaseState``."""
        found = Counter(case.state for case in self.cases)
        return {state: found[state] for state in CaseState if found[state]}

    def is_for(self, cudnn_frontend: str, arch: str) -> bool:
        """Whether it speaks of this release on this architecture, from a real device."""
        own = (self.cudnn_frontend, self.arch) == (cudnn_frontend, arch)
        return own and self.complete and not self.stand_in

    @property
    def told(self) -> str:
        """One line for reports."""
        counts = self.counts
        compared = counts.get(CaseState.AGREES, 0) + counts.get(CaseState.DIFFERS, 0)
        differs = counts.get(CaseState.DIFFERS, 0)
        held = "no difference" if not differs else f"{differs} differ"
        return f"certified {self.arch}, {self.date[:10]}: {compared} cases, {held}"


NEVER = "never certified"
"""What reports say of a model that no certificate speaks of."""


def certified(certificates: Iterable[Certificate], cudnn_frontend: str, arch: str) -> str:
    """Say what is certified of a release's model on an architecture: the newest, or never."""
    own = [item for item in certificates if item.is_for(cudnn_frontend, arch)]
    return max(own, key=lambda item: item.date).told if own else NEVER
