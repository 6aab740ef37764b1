"""Whether layout tables were built as often as they should be, and served for what they are for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.record.deviation import Deviation
from harness.record.memo import MemoEvidence, TableRequest
from harness.record.verdict import Verdict
from harness.scenario.spec import Scenario


def memo_deviations(scenario: Scenario, memos: Sequence[MemoEvidence]) -> tuple[Deviation, ...]:
    """Return everything about the layout memo that is not as it should be.

    A build without a memo builds for each layer; that is a fact, and a deviation only against
    ``expect.layout_builds_per_microbatch``.
    """
    found = [
        Deviation(verdict=Verdict.WRONG_MEMO, kind=kind, text=text, global_rank=memo.global_rank)
        for memo in memos
        for kind, text in _of(scenario, memo)
    ]
    wanted = scenario.expect.layout_builds_per_microbatch
    if wanted is not None and not memos:
        found.append(
            Deviation(
                verdict=Verdict.WRONG_MEMO,
                kind="unseen",
                text=f"expected {wanted} builds of layout tables, but no layer was observed",
            )
        )
    return tuple(dict.fromkeys(found))


def _of(scenario: Scenario, memo: MemoEvidence) -> Iterator[tuple[str, str]]:
    """(kind, text) of what is wrong in one microbatch on one rank."""
    where = f"microbatch {memo.microbatch}"
    wanted = scenario.expect.layout_builds_per_microbatch
    if wanted is not None and memo.builds != wanted:
        yield "builds", f"{where}: {memo.builds} builds of layout tables, expected {wanted}"
    if memo.has_memo:
        if not memo.requests and _needs_tables(scenario, memo):
            yield (
                "unseen",
                f"{where}: the build has a memo, but no request for tables went through it; the "
                "hook table must learn how this build keeps them",
            )
        yield from _builds(memo, where)
        yield from _keys(memo, where)
    yield from _served(memo, where)
    if memo.prebuilt:
        yield from _after_prebuild(memo, where)


def _needs_tables(scenario: Scenario, memo: MemoEvidence) -> bool:
    microbatch = scenario.microbatches[memo.microbatch]
    cp_size = microbatch.cp or scenario.parallel.context_parallel_size
    return microbatch.qkv_format == "thd" and cp_size > 1


def _groups(memo: MemoEvidence, field: str) -> Iterator[tuple[str, tuple[TableRequest, ...]]]:
    for value in dict.fromkeys(getattr(request, field) for request in memo.requests):
        yield value, tuple(r for r in memo.requests if getattr(r, field) == value)


def _builds(memo: MemoEvidence, where: str) -> Iterator[tuple[str, str]]:
    for geometry, requests in _groups(memo, "geometry"):
        builds = sum(request.builds for request in requests)
        keys = {request.key for request in requests}
        if builds > 1 and len(keys) == 1:
            yield "rebuilt", f"{where}: {builds} builds under one key for one geometry: {geometry}"
        if len(keys) > 1:
            listed = " and ".join(sorted(keys))
            yield (
                "unequal_keys",
                f"{where}: one geometry ({geometry}) is kept under {listed}, {builds} builds",
            )


def _keys(memo: MemoEvidence, where: str) -> Iterator[tuple[str, str]]:
    for key, requests in _groups(memo, "key"):
        asked = {(request.geometry, request.flags) for request in requests}
        if len(asked) > 1:
            yield (
                "thin_key",
                f"{where}: {len(asked)} different requests share the key {key}: "
                + "; ".join(sorted(f"{geometry} {flags}" for geometry, flags in asked)),
            )


def _served(memo: MemoEvidence, where: str) -> Iterator[tuple[str, str]]:
    for request in memo.requests:
        if request.first_forward != memo.forward:
            yield (
                "stale",
                f"{where}: layer {request.layer} was served the tables of an earlier microbatch "
                f"(forward {request.first_forward}, now {memo.forward})",
            )
        elif request.equal is False:
            yield (
                "stale",
                f"{where}: layer {request.layer} was served tables that differ from those of a "
                "fresh build",
            )


def _after_prebuild(memo: MemoEvidence, where: str) -> Iterator[tuple[str, str]]:
    sorts = sum(request.sorts for request in memo.requests if request.builds)
    reads = sum(request.reads for request in memo.requests if request.builds)
    if sorts or reads:
        yield (
            "device_read",
            f"{where}: boundaries were on the host already, but building tables read values "
            f"{reads} times and sorted {sorts} times",
        )
