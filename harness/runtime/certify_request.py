"""What a certificate's child process is asked, and what it says of its device first."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from harness.kernels.certify.stand_in import StandIn


@dataclass(frozen=True, kw_only=True, slots=True)
class CertifyRequest:
    """The cases of one process.

    Attributes:
        cudnn_frontend: Release of the models, the installed one on a device.
        arch: Architecture of the models.
        only: Patterns of case names; empty for all.
        names: Cases still to run, in order; empty for all.
        stand_in: A model in the place of the device, None on a device.
    """

    cudnn_frontend: str
    arch: Literal["sm90", "sm100"]
    only: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    stand_in: StandIn | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceFacts:
    """What the cases ran on; see ``harness.record.certificate.Certificate``."""

    device: str
    capability: str
    versions: dict[str, str] = field(default_factory=dict)
    facts: dict[str, bool | int | str | None] = field(default_factory=dict)
