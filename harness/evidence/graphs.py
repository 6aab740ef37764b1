"""Graph evidence: what an eager forward says of a capture, and replays against eager runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from harness.evidence.launches import Launched
from harness.record.graphs import GraphBlocker, GraphReplay
from harness.record.transfers import TO_DEVICE, TO_HOST, TransferEvidence, TransferSite


def blockers(transfers: Iterable[TransferEvidence]) -> Iterator[GraphBlocker]:
    """Lines at which a capture would stop, or from which it would replay old host values."""
    for record in transfers:
        for site in record.sites:
            if blocks_capture(site):
                yield GraphBlocker(
                    operation=site.operation,
                    kind=site.kind,
                    site=site.site,
                    function=site.function,
                    phase=site.phase,
                    layer=record.layer,
                    count=site.count,
                )


def blocks_capture(site: TransferSite) -> bool:
    """Whether a capture cannot get past a line.

    The host may not wait for a capturing stream, and CUDA refuses copies of pageable memory that
    wait. A copy of pinned memory that does not wait is recorded.
    """
    waits = site.kind in (TO_DEVICE, TO_HOST) and (site.blocking or not site.pinned)
    return site.synchronises or waits


def replay_evidence(
    pack: tuple[int, ...], eager: dict[int, Launched], replayed: dict[int, Launched]
) -> GraphReplay:
    """Compare a replay with an eager forward, slot by slot and bit by bit."""
    rows = different = 0
    gap, first = 0.0, None
    for layer, due in eager.items():
        found = replayed[layer]
        wrong = (found.picks != due.picks).any(-1).any(0)
        rows += int(wrong.numel())
        different += int(wrong.sum())
        if first is None and bool(wrong.any()):
            first = int(wrong.nonzero()[0])
        if due.output is not None and found.output is not None:
            gap = max(gap, _gap(found.output, due.output))
    return GraphReplay(
        pack=pack,
        rows=rows,
        rows_different=different,
        output_difference=gap,
        first_different=first,
    )


def _gap(one: torch.Tensor, other: torch.Tensor) -> float:
    difference = (one.float() - other.float()).abs()
    return float(difference.max()) if difference.numel() else 0.0
