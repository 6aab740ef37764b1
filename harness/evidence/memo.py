"""Layout-memo evidence: which requests for tables built them, and what the others were served.

After the forward each request is answered once more, aside, so that a kept table can be held
against what a build would yield, and two requests against each other by what they really asked for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from harness.kernels.wrapping import unwrap
from harness.production.recorder import HookCall, Recorder
from harness.record.memo import MemoEvidence, TableRequest
from harness.reference.site import Site

BUILDERS = ("layout_tables", "layout_tables_host", "local_positions", "local_positions_host")
"""Hooks of functions that build query positions, most of them with the key reorder."""

_MEMO, _BUILD = "memo", "memo_build"
_SORTS = ("aten::sort", "aten::argsort")
_READS = ("aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::item")
_KEPT_FORWARDS = 4


def watch_memo(recorder: Recorder) -> None:
    """Have the recorder see when the build's memo builds, and which objects it serves."""
    recorder.raw |= {_MEMO, *BUILDERS}
    recorder.dressers[_MEMO] = lambda name, value: (
        _observed_build(recorder, value) if name == "build" else value
    )


def _observed_build(recorder: Recorder, build: Any) -> Any:
    def observed() -> Any:
        return recorder.record(_BUILD, "megatron", None, {}, build)

    return observed


@dataclass(kw_only=True, slots=True)
class TableLedger:
    """Objects that were served so far, with the forward of their first service.

    Attributes:
        served: Identity to (number, first forward, the object, which keeps its identity its own).
        count: Objects numbered so far.
    """

    served: dict[int, tuple[int, int, Any]] = field(default_factory=dict)
    count: int = 0

    def enter(self, thing: Any, forward: int) -> tuple[int, int]:
        """Return an object's number and the forward for which it was first served."""
        for key, (_number, first, _thing) in list(self.served.items()):
            if first < forward - _KEPT_FORWARDS:
                del self.served[key]
        number, first, _thing = self.served.setdefault(id(thing), (self.count, forward, thing))
        self.count = max(self.count, number + 1)
        return number, first


def memo_evidence(
    recorder: Recorder, ledger: TableLedger, site: Site, *, has_memo: bool
) -> MemoEvidence:
    """Describe the requests for layout tables of one forward.

    Args:
        recorder: Calls of the forward; its builders are called again, aside.
        ledger: What earlier forwards of this process were served.
        site: Rank, microbatch and seed; the layer is not looked at.
        has_memo: Whether the build keeps a memo, by its probed facts.
    """
    requests = tuple(
        _describe(recorder, call, inner, ledger) for call, inner in list(table_requests(recorder))
    )
    return MemoEvidence(
        global_rank=site.global_rank,
        cp_rank=site.cp_rank,
        microbatch=site.microbatch,
        seed=site.seed,
        forward=recorder.forwards,
        has_memo=has_memo,
        layers=len({call.layer for call in recorder.of("attention")}),
        requests=requests,
        prebuilt=bool(recorder.of("prebuild")),
    )


def table_requests(recorder: Recorder) -> Iterator[tuple[HookCall, tuple[HookCall, ...]]]:
    """Yield each request with the calls made inside it; builds outside a memo are requests too."""
    calls = recorder.calls
    until = 0
    for index, call in enumerate(calls):
        if index < until or call.symbol not in (_MEMO, *BUILDERS):
            continue
        until = index + 1
        while until < len(calls) and calls[until].depth > call.depth:
            until += 1
        if call.returned:
            yield call, tuple(calls[index + 1 : until])


def _describe(
    recorder: Recorder, call: HookCall, inner: tuple[HookCall, ...], ledger: TableLedger
) -> TableRequest:
    again, operations = _again(recorder, call)
    builds = [nested for nested in inner if nested.symbol == _BUILD]
    is_memo = call.symbol == _MEMO
    number, first = ledger.enter(_identity(call.raw), recorder.forwards)
    key = repr(call.arguments.get("key")) if is_memo else ""
    return TableRequest(
        layer=call.layer,
        site=call.caller,
        key=key,
        geometry=_geometry(again.builder) if again.builder else key,
        flags=_flags(again.builder.arguments) if again.builder else "",
        builds=len(builds) if is_memo else 1,
        build_s=sum(build.took_s for build in builds) if is_memo else call.took_s,
        table=number,
        first_forward=first,
        equal=_equal(call.result, again.result),
        sorts=operations.sorts,
        reads=operations.reads,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Again:
    """What a request yields when it is built now, and the builder's own call.

    Attributes:
        builder: None for a table whose builder is not in the hook table.
    """

    result: Any
    builder: HookCall | None


def _again(recorder: Recorder, call: HookCall) -> tuple[_Again, _Operations]:
    with recorder.aside() as calls, _Operations() as operations:
        if call.symbol == _MEMO:
            result = call.arguments["build"]()
        else:
            assert call.function is not None, "hooks of the table keep their function"
            result = call.function(**call.arguments)
    made = (inner for inner in calls if inner.symbol in BUILDERS)
    builder = next(made, None) if call.symbol == _MEMO else call
    return _Again(result=result, builder=builder), operations


class _Operations(TorchDispatchMode):
    """Counts sorts, and waits for values or for sizes that depend on values."""

    def __init__(self) -> None:
        super().__init__()
        self.sorts = 0
        self.reads = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count and run."""
        name = func._schema.name
        self.sorts += name in _SORTS
        self.reads += name in _READS or (name == "aten::index" and _by_mask(args))
        return func(*args, **(kwargs or {}))


def _by_mask(args: Any) -> bool:
    masks = (torch.bool, torch.uint8)
    return any(index is not None and index.dtype in masks for index in args[1])


def _leaves(tables: Any) -> list[torch.Tensor]:
    parts = tables if isinstance(tables, (tuple, list)) else (tables,)
    return [unwrap(part) for part in parts if isinstance(part, torch.Tensor)]


def _identity(tables: Any) -> Any:
    """The object by which tables are told apart: their first tensor."""
    parts = tables if isinstance(tables, (tuple, list)) else (tables,)
    return next((part for part in parts if isinstance(part, torch.Tensor)), tables)


def _equal(found: Any, due: Any) -> bool:
    pairs = list(zip(_leaves(found), _leaves(due), strict=False))
    same_number = len(_leaves(found)) == len(_leaves(due))
    return same_number and all(torch.equal(left, right) for left, right in pairs)


_BOUNDARIES = (
    *("cu_seqlens_q", "cu_seqlens_kv", "cu_seqlens"),
    *("host_cu_seqlens_q", "host_cu_seqlens_kv", "host_cu_seqlens"),
)
_SIZES = (
    *("cp_size", "cp_rank", "output_size"),
    *("local_output_size", "key_local_output_size", "global_output_size"),
)


def _geometry(builder: HookCall) -> str:
    """What tables depend on: their kind, sizes, and a digest of the boundaries' values."""
    arguments = builder.arguments
    digest = hashlib.sha256()
    for name in _BOUNDARIES:
        value = arguments.get(name)
        if value is not None:
            values = unwrap(value).tolist() if isinstance(value, torch.Tensor) else list(value)
            digest.update(f"{name.removeprefix('host_')}={values}".encode())
    sizes = " ".join(f"{name}={arguments[name]}" for name in _SIZES if name in arguments)
    kind = builder.symbol.removesuffix("_host")
    return f"{kind} {sizes} boundaries={digest.hexdigest()[:8]}"


def _flags(arguments: Mapping[str, Any]) -> str:
    both = bool(arguments.get("cu_seqlens_cover_output", False))
    query = bool(arguments.get("query_cu_seqlens_cover_output", both))
    key = bool(arguments.get("key_cu_seqlens_cover_output", False))
    return f"query={query} key={key}"
