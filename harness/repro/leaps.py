"""Tiny cases of a large one's shape: what is tried before anything large is run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from harness.repro.reduce_model import with_model, with_small_model
from harness.repro.reductions import cost
from harness.repro.reshape import with_cp, with_lengths
from harness.scenario.spec import ExpectSpec, MicrobatchSpec, Scenario

TOTALS = (8, 16, 32, 64, 128, 512, 2048)
"""Tokens of the largest pack of a tiny case."""
CP_SIZES = (1, 2, 4, 8)


def leaps(scenario: Scenario) -> list[tuple[str, Scenario]]:
    """Return tiny cases, smallest first: fewer tokens, CP ranks and top-k, small dimensions."""
    plain = replace(
        scenario,
        expect=ExpectSpec(verdict=scenario.expect.verdict),
        reference=replace(scenario.reference, rows="all"),
    )
    found: dict[str, tuple[str, Scenario]] = {}
    for text, case in _cases(plain):
        found.setdefault(case.content_hash, (text, case))
    found.pop(scenario.content_hash, None)
    return sorted(found.values(), key=lambda item: cost(item[1]))


def _cases(scenario: Scenario) -> Iterator[tuple[str, Scenario]]:
    largest = max(sum(pack.sequences) for pack in scenario.microbatches)
    configured = scenario.parallel.context_parallel_size
    sizes = [size for size in CP_SIZES if size < configured and configured % size == 0]
    for total in (total for total in TOTALS if total <= largest):
        for size in (*sizes, configured):
            if size == 1 < configured:
                # Mostly another path altogether; the greedy steps try it on a small case.
                continue
            shrunk = with_cp(scenario, size) if size != configured else scenario
            for one in (True, False):
                packs = tuple(
                    _scaled(pack, total, largest, pack.cp or size, one=one)
                    for pack in shrunk.microbatches
                )
                yield from _models(replace(shrunk, microbatches=packs), total, largest, size)


def _scaled(
    pack: MicrobatchSpec, total: int, largest: int, cp_size: int, *, one: bool
) -> MicrobatchSpec:
    """Return a pack scaled to ``total`` of ``largest`` tokens; nothing real becomes empty."""
    plain = replace(pack, padded="auto", kv_padded="auto", tail_padding=0)
    if one and pack.kv_sequences is None and pack.qkv_format == "thd":
        length = max(1, sum(pack.sequences) * total // largest)
        return with_lengths(plain, (length,), cp_size)
    lengths = [max(min(n, 1), n * total // largest) for n in pack.sequences]
    if pack.kv_sequences is not None:
        keys = tuple(max(min(n, 1), n * total // largest) for n in pack.kv_sequences)
        plain = replace(plain, kv_sequences=keys)
    if pack.qkv_format == "sbhd":
        lengths = [max(2 * cp_size, lengths[0] // (2 * cp_size) * 2 * cp_size)] * len(lengths)
    return with_lengths(plain, lengths, cp_size)


def _models(
    scenario: Scenario, total: int, largest: int, cp_size: int
) -> Iterator[tuple[str, Scenario]]:
    topk = scenario.model.dsa_indexer_topk
    asked = sorted({max(1, topk * total // largest), max(1, total // 8), max(1, total // 4), topk})
    for picks in asked[:3]:
        if picks > topk:
            continue
        case = scenario
        if picks != topk:
            case = with_model(case, dsa_indexer_topk=picks)
        shape = " + ".join("+".join(map(str, pack.sequences[:3])) for pack in case.microbatches[:2])
        text = f"{shape} tokens, CP {cp_size}, top-k {picks}"
        yield text, with_small_model(case)
        if total == TOTALS[0] or total == TOTALS[3]:
            yield f"{text}, dimensions as they were", case
