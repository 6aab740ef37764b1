"""``dsa-harness certify``: holds the kernel models against the kernels of the installed release."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast, get_args

import click

from harness.record.verdict import ExitCode
from launch.paths import PATH

if TYPE_CHECKING:
    from harness.kernels.certify.stand_in import Plant, StandIn
    from harness.record.certificate import Certificate, CertifiedCase
    from harness.runtime.certify_request import CertifyRequest

Arch = Literal["sm90", "sm100"]
CAPABILITIES: dict[tuple[int, int], Arch] = {(9, 0): "sm90", (10, 0): "sm100", (10, 3): "sm100"}
"""Compute capability to the architecture of the models."""
_SHOWN = 3
"""Differences shown of one case."""


class CertifyUsageError(click.ClickException):
    """The command cannot be used like this; one line."""

    exit_code = int(ExitCode.USAGE)


class NotRunError(click.ClickException):
    """Nothing was compared, because something is missing; one line."""

    exit_code = int(ExitCode.NOTHING_RAN)

    def format_message(self) -> str:
        """Say what is missing."""
        return f"not run: {self.message}"


# fmt: off
@click.command(name="certify")
@click.option("--only", multiple=True, metavar="PATTERN",
              help="Only cases named like this, such as 'indexer_top_k/*'; repeatable.")
@click.option("--out", type=PATH, metavar="FILE",
              help="Write the certificate here instead of configs/kernels/certificates.")
@click.option("--limit", "limit_s", type=click.FloatRange(min=0.1), default=120.0,
              show_default=True, metavar="S", help="Seconds for one case with its compilation.")
@click.option("--stand-in", metavar="RELEASE@ARCH",
              help="Compare with a model in the place of a device, to try the comparison itself: "
              "such a certificate certifies nothing and goes nowhere without --out.")
@click.option("--defects", metavar="NAMES", show_default="as_released",
              help="With --stand-in: as_released, none, or names of defects with commas.")
@click.option("--plant", metavar="KIND:CASE",
              help="With --stand-in: break one case (cell, hang, crash or raise).")
@click.option("--list", "listed", is_flag=True, help="List the cases and run none.")
def certify(
    only: tuple[str, ...],
    out: Path | None,
    limit_s: float,
    stand_in: str | None,
    defects: str | None,
    plant: str | None,
    listed: bool,
) -> int:
    # fmt: on
    """Give every case to a model and to the kernel of the installed release, and compare.

    Exit code 0 when nothing differs, 1 when something does (the certificate is written either
    way), 5 without a usable GPU or a release that has a model.
    """
    from harness.runtime.certify import CertifyError, certify

    request = _request(only, stand_in, defects, plant, listed=listed)
    if listed:
        return _list(request)
    _check_plant(request)
    try:
        cases, device = certify(request, on_case=_tell, case_s=limit_s)
    except CertifyError as error:
        raise CertifyUsageError(str(error)) from error
    except KeyboardInterrupt:
        raise click.Abort from None
    from harness.record.certificate import Certificate

    certificate = Certificate(
        cudnn_frontend=request.cudnn_frontend,
        arch=request.arch,
        capability=device.capability,
        device=device.device,
        stand_in=stand_in or "",
        versions=device.versions,
        facts=device.facts,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        complete=not only,
        cases=cases,
    )
    _write(certificate, out)
    return _conclude(certificate)


def _request(
    only: tuple[str, ...],
    stand_in: str | None,
    defects: str | None,
    plant: str | None,
    *,
    listed: bool,
) -> CertifyRequest:
    from harness.runtime.certify_request import CertifyRequest

    if stand_in is None:
        if plant is not None:
            raise CertifyUsageError("--plant: goes with --stand-in; a device is not to be broken")
        if defects is not None:
            raise CertifyUsageError("--defects: goes with --stand-in; a device has its own")
        release, arch = _installed(listed=listed)
        return CertifyRequest(cudnn_frontend=release, arch=arch, only=only)
    other = _stand_in(stand_in, "as_released" if defects is None else defects, plant)
    return CertifyRequest(
        cudnn_frontend=other.cudnn_frontend, arch=other.arch, only=only, stand_in=other
    )


def _stand_in(text: str, defects: str, plant: str | None) -> StandIn:
    from harness.kernels.certify.stand_in import PLANTS, StandIn
    from harness.kernels.defects import DEFECTS
    from harness.kernels.releases import ARCHES, RELEASES

    release, _, arch = text.partition("@")
    if release not in RELEASES or arch not in ARCHES:
        raise CertifyUsageError(
            f"--stand-in {text!r}: expected RELEASE@ARCH with one of {', '.join(RELEASES)} and "
            f"{' or '.join(ARCHES)}"
        )
    named = defects if defects in ("as_released", "none") else tuple(defects.split(","))
    unknown = [] if isinstance(named, str) else [name for name in named if name not in DEFECTS]
    if unknown:
        raise CertifyUsageError(f"--defects: no defect is called {', '.join(unknown)}")
    kind, _, at = (plant or "").partition(":")
    if plant and (kind not in PLANTS or not at):
        raise CertifyUsageError(
            f"--plant {plant!r}: expected one of {', '.join(PLANTS)}, then :CASE"
        )
    return StandIn(
        cudnn_frontend=release,
        arch=arch,
        defects=cast(Literal["as_released", "none"], named),
        plant=cast("Plant", kind) if plant else None,
        at=at,
    )


def _check_plant(request: CertifyRequest) -> None:
    """Refuse a plant at a case that does not run: it would break nothing."""
    from harness.kernels.certify import kernel_cases

    other = request.stand_in
    if other is None or other.plant is None:
        return
    cases = kernel_cases(request.cudnn_frontend, request.arch, only=request.only)
    if cases and other.at not in {case.name for case in cases}:
        raise CertifyUsageError(
            f"--plant: no case that runs is called {other.at}; see --list, and --only"
        )


def _installed(*, listed: bool) -> tuple[str, Arch]:
    """Return release and architecture to certify; to list cases, no device is needed."""
    from harness.kernels.detect import installed_facts, installed_kernels
    from harness.kernels.releases import RELEASES

    release = installed_kernels().cudnn_frontend
    if release is None:
        raise NotRunError("nvidia-cudnn-frontend is not installed, so there is nothing to compare")
    if release not in RELEASES:
        raise NotRunError(
            f"cudnn-frontend {release} is installed and has no model; the newest modelled is "
            f"{list(RELEASES)[-1]}"
        )
    if listed:
        return release, get_args(Arch)[-1]
    import torch

    if not torch.cuda.is_available():
        raise NotRunError(
            "no usable GPU; certificates come from a device (--stand-in tries the comparison)"
        )
    capability = torch.cuda.get_device_capability()
    if capability not in CAPABILITIES:
        raise NotRunError(
            f"the GPU has compute capability {capability[0]}.{capability[1]}; modelled are 9.0, "
            "10.0 and 10.3"
        )
    facts = installed_facts()
    if facts.accepts_causal_offsets is None:
        raise NotRunError(f"the kernels of cudnn-frontend {release} do not load: {facts.reason}")
    return release, CAPABILITIES[capability]


def _list(request: CertifyRequest) -> int:
    from harness.kernels.certify import kernel_cases

    cases = kernel_cases(request.cudnn_frontend, request.arch, only=request.only)
    if not cases:
        raise CertifyUsageError(f"no case is called like {' '.join(request.only)}")
    for case in cases:
        click.echo(f"{case.name:<60} {case.basis:<9} {case.rule}")
    return int(ExitCode.OK)


def _tell(case: CertifiedCase, number: int, total: int) -> None:
    """One line a case; what differs gets more."""
    from harness.record.certificate import CaseState

    click.echo(f"[{number}/{total}] {case.state:<12} {case.name}  {case.seconds:.1f} s")
    if case.state in (CaseState.NOT_SHOWN, CaseState.NOT_COMPARED):
        click.echo(f"    {case.reason}")
    for found in case.differences[:_SHOWN]:
        where = f" at {list(found.first)}" if found.first is not None else ""
        share = f" ({found.num_different} of {found.num_elements})" if found.first else ""
        click.echo(f"    {found.cell}{where}: model {found.model}, kernel {found.kernel}{share}")


def _write(certificate: Certificate, out: Path | None) -> None:
    """Store a certificate; one of a stand-in, or of some cases alone, only where asked to."""
    from harness.kernels.certificates import FOLDER, certificate_name
    from harness.record.files import write_record

    path = out
    if path is None and certificate.complete and not certificate.stand_in:
        path = FOLDER / certificate_name(certificate.cudnn_frontend, certificate.arch)
    if path is None:
        click.echo("not stored: some of the cases, or a stand-in (give --out to keep it)")
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    write_record(path, certificate)
    click.echo(f"written: {path}")


def _conclude(certificate: Certificate) -> int:
    from harness.record.certificate import CaseState

    counts = ", ".join(f"{number} {state}" for state, number in certificate.counts.items())
    what = f"stand-in {certificate.stand_in}" if certificate.stand_in else certificate.device
    click.echo(f"{certificate.cudnn_frontend} {certificate.arch} on {what}: {counts}")
    if CaseState.DIFFERS in certificate.counts:
        click.echo("Where model and kernel differ, no modelled verdict about that rule stands.")
        return int(ExitCode.CHECK_FAILED)
    return int(ExitCode.OK)
