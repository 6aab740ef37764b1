"""Transfer evidence of one watched forward, layer by layer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from harness.production.transfers import Traffic
from harness.record.transfers import TransferEvidence
from harness.reference.site import Site


def transfer_evidence(
    traffic: Traffic, site: Site, *, how: str, layers: Iterable[int]
) -> Iterator[TransferEvidence]:
    """Yield a record for each layer that ran, also for one that neither waits nor copies."""
    found = traffic.sites()
    for layer in sorted({*layers, *found}):
        yield TransferEvidence(
            **replace(site, layer=layer).fields(),
            how=how,
            sites=found.get(layer, ()),
            waits_reported=traffic.waits_reported,
        )
