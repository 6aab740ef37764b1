"""Rules over the lengths of microbatches. The arithmetic is that of ``harness.layout``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from harness.layout import LayoutError, Pack, pack_sequences, padded_length, sbhd_pack
from harness.scenario.problems import NodePath
from harness.scenario.rules.finding import Finding, Rule, effective_cp
from harness.scenario.spec import MicrobatchSpec, Scenario

_INT32_MAX = 2**31 - 1

_MAX_REPORTED = 20
"""Entries of one list that are reported; a list that is wrong throughout is clear after these."""

_Padded = Literal["auto"] | tuple[int, ...]


def build_pack(microbatch: MicrobatchSpec, cp_size: int) -> Pack:
    """Return the layout of a ``thd`` microbatch, or of one sequence of an ``sbhd`` batch.

    Raises:
        LayoutError: the lengths break a rule of ``harness.layout``.
    """
    if microbatch.qkv_format == "sbhd":
        return sbhd_pack(microbatch.sequences[0], cp_size=cp_size)
    return pack_sequences(
        microbatch.sequences,
        cp_size=cp_size,
        padded=microbatch.padded,
        kv_sequences=microbatch.kv_sequences,
        kv_padded=microbatch.kv_padded,
        tail_padding=microbatch.tail_padding,
    )


def _lengths(scenario: Scenario) -> Iterator[Finding]:
    for index, microbatch in enumerate(scenario.microbatches):
        cp_size = effective_cp(scenario, microbatch)
        if not _is_sound(microbatch, cp_size):
            yield from _findings(microbatch, cp_size, ("microbatches", index))


def _findings(microbatch: MicrobatchSpec, cp_size: int, path: NodePath) -> Iterator[Finding]:
    check = _batch if microbatch.qkv_format == "sbhd" else _pack
    return check(microbatch, cp_size, path)


@functools.lru_cache(maxsize=1024)
def _is_sound(microbatch: MicrobatchSpec, cp_size: int) -> bool:
    """Tell whether nothing is to be said; combinations of a matrix share their packs."""
    return next(_findings(microbatch, cp_size, ()), None) is None


def _pack(microbatch: MicrobatchSpec, cp_size: int, path: NodePath) -> Iterator[Finding]:
    def with_padded(padded: _Padded) -> Pack:
        return pack_sequences(microbatch.sequences, cp_size=cp_size, padded=padded)

    found = [
        *_stream(microbatch.sequences, microbatch.padded, with_padded, cp_size, (*path, "padded")),
        *_keys(microbatch, cp_size, path),
        *_tail(microbatch, cp_size, path),
    ]
    yield from found
    if not found:
        pack = build_pack(microbatch, cp_size)
        totals = {"sequences": pack.total_q}
        if microbatch.kv_sequences is not None:
            totals["kv_sequences"] = pack.total_k
        for key, total in totals.items():
            if total > _INT32_MAX:
                yield Finding(
                    path=(*path, key),
                    message=f"{total} padded tokens exceed {_INT32_MAX}, the greatest int32 that "
                    "cu_seqlens can hold; use shorter or fewer sequences",
                )


def _keys(microbatch: MicrobatchSpec, cp_size: int, path: NodePath) -> Iterator[Finding]:
    real = microbatch.kv_sequences

    def with_padded(kv_padded: _Padded) -> Pack:
        return pack_sequences(
            microbatch.sequences, cp_size=cp_size, kv_sequences=real, kv_padded=kv_padded
        )

    if real is not None and len(real) == len(microbatch.sequences):
        yield from _stream(real, microbatch.kv_padded, with_padded, cp_size, (*path, "kv_padded"))
        return
    try:
        # With a number of key lengths that does not fit, their padding cannot be judged.
        with_padded(microbatch.kv_padded if real is None else "auto")
    except LayoutError as error:
        key = "kv_padded" if real is None else "kv_sequences"
        yield Finding(path=(*path, key), message=str(error))


def _stream(
    real: Sequence[int],
    padded: _Padded,
    build: Callable[[_Padded], Pack],
    cp_size: int,
    path: NodePath,
) -> Iterator[Finding]:
    """Collect every broken rule of one stream: report an entry, repair it, and look again."""
    for _ in range(_MAX_REPORTED):
        try:
            build(padded)
        except LayoutError as error:
            entry = error.sequence
            if entry is None or padded == "auto":
                yield Finding(path=path, message=str(error))
                return
            yield Finding(path=(*path, entry), message=str(error))
            repaired = padded_length(real[entry], cp_size)
            padded = (*padded[:entry], repaired, *padded[entry + 1 :])
        else:
            return


def _tail(microbatch: MicrobatchSpec, cp_size: int, path: NodePath) -> Iterator[Finding]:
    try:
        pack_sequences(microbatch.sequences, cp_size=cp_size, tail_padding=microbatch.tail_padding)
    except LayoutError as error:
        yield Finding(path=(*path, "tail_padding"), message=str(error))


def _batch(microbatch: MicrobatchSpec, cp_size: int, path: NodePath) -> Iterator[Finding]:
    lengths = microbatch.sequences
    for index, length in enumerate(lengths):
        if length != lengths[0]:
            yield Finding(
                path=(*path, "sequences", index),
                message=f"qkv_format sbhd takes equal lengths, found {length} after {lengths[0]}; "
                "make them equal or use qkv_format: thd",
            )
    if lengths[0] == 0:
        yield Finding(
            path=(*path, "sequences", 0),
            message="qkv_format sbhd takes lengths of at least 1, found 0; use qkv_format: thd",
        )
    try:
        sbhd_pack(lengths[0], cp_size=cp_size)
    except LayoutError as error:
        yield Finding(path=(*path, "sequences"), message=str(error))
    only_packed = {
        "padded": microbatch.padded != "auto",
        "kv_sequences": microbatch.kv_sequences is not None,
        "kv_padded": microbatch.kv_padded != "auto",
        "tail_padding": microbatch.tail_padding != 0,
    }
    for key, given in only_packed.items():
        if given:
            yield Finding(path=(*path, key), message=f"{key} is for qkv_format thd only; remove it")


RULES = (
    Rule(
        needs=("microbatches", "parallel.context_parallel_size"),
        check=_lengths,
        each_microbatch=True,
    ),
)
