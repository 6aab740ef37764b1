"""``dsa-harness affected``: is this image affected, on which path, and what do I change."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.record.verdict import ExitCode
from launch.paths import PATH

if TYPE_CHECKING:
    from harness.repro.affected import Finding, Image

_ROOT = Path(__file__).resolve().parents[1]
_VERSION = re.compile(
    r"\d{1,6}\.\d{1,6}\.\d{1,6}(?:\.?(?:a|b|rc|post|dev)\d{1,9}){0,3}(?:\+[a-z0-9.]{1,40})?",
    re.ASCII | re.IGNORECASE,
)
_MARKS = {"yes": "AFFECTED", "no": "no", "unknown": "unknown"}


def _version(_context: click.Context, _option: click.Parameter, given: str | None) -> str | None:
    """Refuse what is no version: it would be answered for another release without a word."""
    if given is not None and _VERSION.fullmatch(given) is None:
        hint = "" if given else "; is a variable of the shell unset?"
        raise click.BadParameter(f"expected a release such as 1.32.0, found {given[:40]!r}{hint}")
    return given


def _checkout(_context: click.Context, _option: click.Parameter, given: Path | None) -> str | None:
    if given is not None and not given.expanduser().is_dir():
        raise click.BadParameter(f"{given}: no such folder; give a Megatron-LM checkout")
    return None if given is None else str(given)


@click.command(name="affected")
@click.option("--megatron", type=PATH, metavar="PATH", callback=_checkout,
              help="Megatron-LM checkout (default: installed).")  # fmt: skip
@click.option("--cudnn-frontend", metavar="VERSION", callback=_version,
              help="Ask about another release.")  # fmt: skip
@click.option("--arch", type=click.Choice(["sm90", "sm100"]),
              help="Architecture (default: this machine's; both without a GPU).")  # fmt: skip
@click.option("--only", multiple=True, metavar="NAME", help="Ask about this fault alone; repeats.")
@click.option("--measure", is_flag=True, help="Run a few scenarios of seconds, too.")
@click.option("--all", "everything", is_flag=True, help="Show what it is not affected by, too.")
@click.option("--json", "as_json", is_flag=True, help="All answers as JSON.")
def affected(
    megatron: str | None,
    cudnn_frontend: str | None,
    arch: str | None,
    only: tuple[str, ...],
    measure: bool,
    everything: bool,
    as_json: bool,
) -> int:
    """Say by which known faults this image is affected, on which path, and what to change.

    Answers come from facts of the build and from the kernels' release, without a GPU; --measure
    also runs what seconds can decide. Exit code: 0 by none, 1 by at least one, 5 it cannot tell.
    """
    from harness.repro.affected import findings, look_at

    image = look_at(megatron, cudnn_frontend=cudnn_frontend, arch=arch)  # type: ignore[arg-type]
    found = findings(image)
    if unknown := set(only) - {item.name for item in found}:
        names = ", ".join(item.name for item in found)
        raise click.UsageError(f"--only {min(unknown)}: expected one of {names}")
    found = tuple(item for item in found if not only or item.name in only)
    if measure:
        found = _measured(image, found, megatron)
    if as_json:
        from launch.scenario_options import show_json

        show_json({"image": image, "findings": found, "exit_code": int(exit_code(found))})
    else:
        _show(image, found, everything)
    return int(exit_code(found))


def exit_code(found: tuple[Finding, ...]) -> ExitCode:
    """Return what the answers amount to; limits are no faults and do not count."""
    answers = {item.affected for item in found if item.kind == "fault"}
    if "yes" in answers:
        return ExitCode.CHECK_FAILED
    return ExitCode.NOTHING_RAN if "unknown" in answers else ExitCode.OK


def _measured(
    image: Image, found: tuple[Finding, ...], megatron: str | None
) -> tuple[Finding, ...]:
    from harness.repro.measured import with_measurements
    from harness.runtime.devices import num_gpus
    from harness.runtime.options import Options
    from harness.runtime.warm import WarmRanks

    if image.megatron_core is None:
        raise click.UsageError(f"--measure needs a usable Megatron: {image.no_build}")
    with WarmRanks(1, options=Options(megatron=megatron), on_gpu=num_gpus() > 0) as ranks:
        return with_measurements(found, image, ranks.evaluate, root=_ROOT)


def _show(image: Image, found: tuple[Finding, ...], everything: bool) -> None:
    build = image.megatron_core or f"none ({image.no_build})"
    click.echo(f"megatron-core   {build}")
    click.echo(f"cudnn-frontend  {image.cudnn_frontend or 'not installed'}")
    where = ", ".join(image.arches)
    click.echo(f"architecture    {where}{' (no GPU seen: both)' if len(image.arches) > 1 else ''}")
    shown = [item for item in found if everything or item.affected != "no"]
    for kind, title in (("fault", "Faults"), ("limit", "Limits (slow, or not served)")):
        rows = [item for item in shown if item.kind == kind]
        if rows:
            click.echo(f"\n{title}")
        for item in rows:
            _show_one(item)
    hidden = len(found) - len(shown)
    if hidden:
        click.echo(f"\nnot affected by {hidden} others (--all shows them)")
    if not any(item.basis.startswith("measured") for item in found):
        click.echo("nothing here was measured on a GPU")


def _show_one(item: Finding) -> None:
    click.echo(f"\n{_MARKS[item.affected]:<9} {item.title}  [{item.name}]")
    for label, text in (
        ("path", item.path),
        ("why", f"{item.why} ({item.basis})"),
        ("change", item.change),
        ("shows it", item.scenario),
        ("link", item.link),
    ):
        click.echo(f"          {label:<9} {text}")
