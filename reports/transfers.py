"""Waits and copies between host and device, by source line."""

from __future__ import annotations

from collections.abc import Iterable

from harness.record.transfers import TransferEvidence, TransferSite
from reports.summary import RunSummary
from reports.table import Table, table
from reports.text import number_ranges

_HEADER = (
    "scenario",
    "microbatch",
    "layer",
    "cp_rank",
    "times",
    "what",
    "operation",
    "line",
    "phase",
    "host memory",
    "note",
)


def transfer_table(summary: RunSummary) -> Table:
    """One row a line that waits or copies, ranks and layers that do alike drawn together."""
    rows = []
    for item in summary.scenarios:
        for (microbatch, site, ranks), layers in _lines(item.result.last.transfers).items():
            rows.append(
                (
                    item.result.id,
                    str(microbatch),
                    number_ranges(layers),
                    number_ranges(ranks),
                    str(site.count),
                    site.kind,
                    site.operation,
                    f"{site.site} {site.function}",
                    site.phase,
                    _memory(site),
                    "hang risk: blocking copy between collectives" if site.hang_risk else "-",
                )
            )
    return table("Waits of the host and copies, per layer and rank", _HEADER, rows, code=(0, 6, 7))


_Key = tuple[int, TransferSite, frozenset[int]]


def _lines(records: Iterable[TransferEvidence]) -> dict[_Key, set[int]]:
    """(microbatch, line, its ranks) to its layers."""
    ranks: dict[tuple[int, int, TransferSite], set[int]] = {}
    for record in records:
        for site in record.sites:
            ranks.setdefault((record.microbatch, record.layer, site), set()).add(record.cp_rank)
    found: dict[_Key, set[int]] = {}
    for (microbatch, layer, site), who in ranks.items():
        found.setdefault((microbatch, site, frozenset(who)), set()).add(layer)
    return found


def _memory(site: TransferSite) -> str:
    if site.pinned is None:
        return "-"
    kind = "pinned" if site.pinned else "pageable"
    return f"{kind}, {site.bytes} bytes, {'blocking' if site.blocking else 'not blocking'}"


def wait_table(summary: RunSummary) -> Table:
    """Waits and copies of each layer, added up."""
    rows: dict[tuple[str, ...], set[int]] = {}
    for item in summary.scenarios:
        for record in item.result.last.transfers:
            row = (
                item.result.id,
                str(record.microbatch),
                str(record.layer),
                str(record.host_reads),
                str(record.copies_to_device),
                "GPU" if record.how == "device" else "look-alike tensors",
            )
            rows.setdefault(row, set()).add(record.cp_rank)
    header = ("scenario", "microbatch", "layer", "waits", "copies to device", "seen on", "cp_rank")
    lines = [(*row, number_ranges(ranks)) for row, ranks in rows.items()]
    return table("Waits of the host per layer", header, lines, code=(0,))
