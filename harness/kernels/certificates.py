"""Stored certificates: ``configs/kernels/certificates``, one file per architecture and release."""

from __future__ import annotations

from pathlib import Path

from harness.kernels.releases import ARCHES, RELEASES
from harness.record.certificate import NEVER, Certificate, certified
from harness.record.files import read_record

FOLDER = Path(__file__).resolve().parents[2] / "configs" / "kernels" / "certificates"


def certificate_name(cudnn_frontend: str, arch: str) -> str:
    """Return the name of a certificate's file."""
    return f"{arch}-{cudnn_frontend}.json"


def certified_text(cudnn_frontend: str, arch: str, folder: Path = FOLDER) -> str:
    """Say whether a model was held against the real kernels of its release, and how that ended.

    Returns:
        ``never certified``, also where the file at hand speaks of something else or is unreadable:
        a certificate that cannot be read certifies nothing.
    """
    if cudnn_frontend not in RELEASES or arch not in ARCHES:
        return NEVER
    path = folder / certificate_name(cudnn_frontend, arch)
    if not path.is_file():
        return NEVER
    try:
        found = read_record(path, Certificate)
    except (OSError, ValueError):
        return f"{NEVER}: {path.name} is no certificate"
    return certified([found], cudnn_frontend, arch)
