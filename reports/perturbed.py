"""One sentence for a call that was broken on purpose: what was broken, where, how far it came."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from harness.record.perturb import PerturbEvidence
from reports.finding import Finding
from reports.text import number_ranges


def perturbed_findings(perturbations: Iterable[PerturbEvidence]) -> Iterator[Finding]:
    """Yield a sentence for each kind of broken call, its ranks taken together."""
    groups: dict[tuple[str, str], list[int]] = {}
    for item in perturbations:
        groups.setdefault((_broken(item), _came(item)), []).append(item.global_rank)
    for (broken, came), ranks in groups.items():
        where = number_ranges(sorted(set(ranks)))
        yield Finding(label="perturbed", text=f"{broken} on global_rank {where}; {came}")


def _broken(item: PerturbEvidence) -> str:
    what = f"{', '.join(item.arguments)} of {item.call}" if item.arguments else item.call
    return f"{item.fact}: {what} ({item.change})"


def _came(item: PerturbEvidence) -> str:
    kernels = f"kernels called: {', '.join(item.kernels)}" if item.kernels else "no kernel called"
    return f"declined, then {kernels}" if item.declined else kernels
