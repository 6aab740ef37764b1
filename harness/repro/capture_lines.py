"""A capture as its files tell it: what each rank was given, in order, and how it ended.

The files come from a stranger's job, which mostly died while writing them: a line that cannot be
read is counted and left out, and nothing in them is taken on trust.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from harness.repro.capture_records import Capture, CaptureError, Died, Microbatch, Rank

MAX_FILES = 65_536
MAX_FILE_BYTES = 64 * 2**20
MAX_LINE_BYTES = 16 * 2**20
MAX_ENTRIES = 2**20
"""Longest list of boundaries."""
SCHEMA = 1

_NAME = re.compile(r"rank(\d{5,9})\.(\d{1,20})\.(\d{1,12})\.[01]\.jsonl", re.ASCII)


def read_capture(folder: Path) -> Capture:
    """Read the files of a capture.

    Raises:
        CaptureError: when the folder cannot be read or no file in it tells of a microbatch.
    """
    newest: dict[int, tuple[int, int]] = {}
    files: dict[tuple[int, int, int], list[Path]] = {}
    for path, key in _files(folder):
        files.setdefault(key, []).append(path)
        newest[key[0]] = max(newest.get(key[0], (0, 0)), key[1:])
    ranks: dict[int, Rank] = {}
    problems: list[str] = []
    num_older = 0
    for key, paths in sorted(files.items()):
        if key[1:] != newest[key[0]]:
            num_older += len(paths)
            continue
        found = Rank(rank=key[0], started=key[1])
        problems += _read(found, paths)
        _settle(found)
        stacks = paths[0].with_name(f"{paths[0].name.split('.jsonl')[0][:-2]}.stacks")
        problems += read_stacks(found, stacks)
        if found.microbatches:
            ranks[key[0]] = found
        elif found.process or found.broken:
            problems.append(_nothing_of(found))
    if not ranks:
        detail = f"; {problems[0]}" if problems else ""
        raise CaptureError(
            f"{folder}: expected files rank*.jsonl that tell of at least one microbatch, found "
            f"none{detail}; give the folder that DSA_HARNESS_CAPTURE named in the job"
        )
    return Capture(folder=folder, ranks=ranks, num_older=num_older, problems=tuple(problems))


def _files(folder: Path) -> Iterator[tuple[Path, tuple[int, int, int]]]:
    try:
        names = sorted(path.name for path in folder.iterdir())
    except OSError as error:
        raise CaptureError(
            f"{folder}: expected a folder of a capture, cannot be read: {error.strerror or error}"
        ) from error
    matches = [found for name in names if (found := _NAME.fullmatch(name))]
    if len(matches) > MAX_FILES:
        raise CaptureError(
            f"{folder}: expected at most {MAX_FILES} files, found {len(matches)}; move those of "
            "the ranks in question into a folder of their own"
        )
    for found in matches:
        yield folder / found[0], (int(found[1]), int(found[2]), int(found[3]))


def _read(rank: Rank, paths: Iterable[Path]) -> Iterator[str]:
    """Take in a rank's files together; yield what is wrong with one as a whole."""
    items: list[tuple[float, dict[str, Any], str]] = []
    broken: Counter[str] = Counter()
    for path in paths:
        data = _content(path)
        if isinstance(data, str):
            rank.is_whole = False
            yield f"{path.name}: {data}"
            continue
        lines = data.split(b"\n")
        broken[path.name] += bool(lines.pop())
        for line in filter(None, lines):
            try:
                items.append((*_item(line), path.name))
            except _BROKEN:
                broken[path.name] += 1
    # Either file may be the newer one, and copies land late: only time tells the order.
    items.sort(key=lambda item: item[0])
    for _time, item, name in items:
        try:
            _take(rank, item)
        except _BROKEN:
            broken[name] += 1
    rank.broken = dict(+broken)
    if rank.process.get("schema") not in (None, SCHEMA):
        yield f"rank {rank.rank}: another version of the recorder, read as far as possible"


def _nothing_of(rank: Rank) -> str:
    count = f" ({rank.num_broken} lines broken)" if rank.num_broken else ""
    end = f"; it ended with {rank.died.type}" if rank.died is not None else ""
    return f"rank {rank.rank}: none of its microbatches can be read{count}, left out{end}"


_BROKEN = (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError)


def _content(path: Path) -> bytes | str:
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode):
            return "no regular file, left out"
        if status.st_size > MAX_FILE_BYTES:
            return f"larger than {MAX_FILE_BYTES} bytes, left out"
        return path.read_bytes()
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"


def _item(line: bytes) -> tuple[float, dict[str, Any]]:
    if len(line) > MAX_LINE_BYTES:
        raise ValueError("too long")
    item = json.loads(line)
    if item["e"] in ("process", "config"):
        return -math.inf, item
    time_s = float(item["t"])
    if not math.isfinite(time_s):
        raise ValueError("no time")
    return time_s, item


def _take(rank: Rank, item: dict[str, Any]) -> None:
    event = item["e"]
    match event:
        case "process":
            _check_mappings(item, "versions", "environment", "device")
            rank.process = rank.process or {**item, "offset_s": _offset_s(item)}
        case "config":
            rank.configs[_count(item["config"])] = dict(item["fields"])
        case "end":
            rank.ended, rank.lost = True, _count(item.get("lost", 0))
        case "uncaught":
            rank.uncaught = _died(rank, item)
        case "microbatch":
            _take_microbatch(rank, item)
        case _:
            _take_event(rank, event, item)
    if "t" in item:
        rank.last_s = max(rank.last_s, _wall(rank, item))


def _take_microbatch(rank: Rank, item: dict[str, Any]) -> None:
    number = _count(item["n"])
    _check_mappings(item, "cp", "tp", "query", "key", "value", "x", "qr", "packed")
    for group in (item.get("cp") or {}, item.get("tp") or {}):
        _count(group.get("size", 1))
        _count(group.get("rank", 0))
    others = (item.get("packed") or {}).get("others")
    if not isinstance(others, (list, type(None))) or not isinstance(item.get("config", 0), int):
        raise ValueError("expected names, and the number of a configuration")
    found = Microbatch(number=number, facts=item)
    for name, values in dict(item["values"]).items():
        found.lists[str(name)] = _integers(values)
    for name, why in dict(item["states"]).items():
        found.missing[str(name)] = "not landed" if why == "pending" else str(why)
    found.facts["same"] = {str(name): str(other) for name, other in dict(item["same"]).items()}
    if not rank.process and "wall" in item:
        # Without its first line the rank's times could not be compared with those of others.
        rank.process = {"offset_s": _offset_s(item)}
    # Late lines of another file may stand before it.
    rank.microbatches[number] = found
    rank.unread.pop(number, None)
    rank.steps.append(f"F{number}")


def _take_event(rank: Rank, event: str, item: dict[str, Any]) -> None:
    number = _count(item["n"])
    found = rank.microbatches.get(number) or rank.unread.get(number)
    if found is None:
        found = Microbatch(number=number, facts={})
    match event:
        case "enter" | "leave" | "scores":
            _take_layer(rank, found, event, item)
        case "lengths":
            for name, values in dict(item["values"]).items():
                found.lists[str(name)] = _integers(values)
                found.missing.pop(str(name), None)
        case "backward":
            _begin_backward(rank, found)
        case "exception":
            found.died = _died(rank, item)
        case "tensors_due":
            for one in dict(item["tensors"]).values():
                found.tensors.setdefault(str(one["file"]), "not landed")
        case "tensors":
            for name, state in dict(item["states"]).items():
                found.tensors.update(
                    {file: str(state) for file in found.tensors if f".{name}.bin" in file}
                )
        case _:
            return
    if number not in rank.microbatches:
        # The ring has let its line go, or it cannot be read: that it was there still counts.
        rank.unread[number] = found


def _begin_backward(rank: Rank, found: Microbatch) -> None:
    if not found.has_backward:
        found.has_backward = True
        rank.steps.append(f"B{found.number}")


def _take_layer(rank: Rank, found: Microbatch, event: str, item: dict[str, Any]) -> None:
    layer = _count(item["layer"])
    if item.get("replay") is True:
        # Where attention is computed again its output has no backward of its own to be told.
        found.replayed.add(layer)
        _begin_backward(rank, found)
    elif event == "enter":
        found.entered.append(layer)
    elif event == "leave":
        found.left.add(layer)
        found.num_scores_due += _count(item["scores"])
    else:
        names = ("rows", "keys", "sampled", "number", "below_fp16", "nan", "pos_inf")
        sizes = {name: _count(item[name]) for name in names}
        found.scores.append(item | sizes)


def _settle(rank: Rank) -> None:
    """Fill in lists that share memory, and keep the last unbroken run of microbatches."""
    for found in rank.microbatches.values():
        for name, other in found.facts["same"].items():
            if other in found.lists:
                found.lists.setdefault(name, found.lists[other])
            else:
                found.missing.setdefault(name, "not landed")
    kept: dict[int, Microbatch] = {}
    for number in sorted(rank.microbatches, reverse=True):
        if kept and number + 1 not in kept:
            break
        kept[number] = rank.microbatches[number]
    rank.num_cut = len(rank.microbatches) - len(kept)
    rank.microbatches = dict(sorted(kept.items()))
    rank.steps = [step for step in rank.steps if int(step[1:]) in kept]


def _died(rank: Rank, item: dict[str, Any]) -> Died:
    layer = item.get("layer")
    return Died(
        type=str(item["type"])[:200],
        text=str(item["text"])[:4000],
        frames=tuple(str(frame)[:500] for frame in item["frames"][:64]),
        statement=str(item.get("statement", ""))[:200],
        time_s=_wall(rank, item),
        layer=None if layer is None else _count(layer),
    )


def _check_mappings(item: dict[str, Any], *names: str) -> None:
    """Refuse a line whose parts are no mappings, as far as they are there."""
    for name in names:
        if not isinstance(item.get(name), (dict, type(None))):
            raise ValueError(f"expected a mapping for {name}")


def _offset_s(item: dict[str, Any]) -> float:
    """Wall time at which the clock of the lines began."""
    offset_s = float(item["wall"]) - float(item["t"])
    if not math.isfinite(offset_s):
        raise ValueError("no time")
    return offset_s


def _wall(rank: Rank, item: dict[str, Any]) -> float:
    return float(item["t"]) + float(rank.process.get("offset_s", 0.0))


def _count(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63:
        return value
    raise ValueError(f"expected a count, found {value!r:.40}")


def _integers(values: Any) -> list[int]:
    if not isinstance(values, list) or len(values) > MAX_ENTRIES:
        raise ValueError("expected a list of boundaries")
    return [_count(value) for value in values]


_FATAL = re.compile(r"^Fatal Python error: ([A-Za-z -]{1,40})$", re.MULTILINE)
_SIGNALS = {
    "Segmentation fault": "SIGSEGV",
    "Bus error": "SIGBUS",
    "Aborted": "SIGABRT",
    "Floating-point exception": "SIGFPE",
    "Floating point exception": "SIGFPE",
    "Illegal instruction": "SIGILL",
}
_FRAME = re.compile(r'^  File "([^"\n]{1,400})", line (\d{1,9}) in (\S{1,200})$', re.MULTILINE)
_MAX_STACKS = 2**20


def read_stacks(rank: Rank, path: Path) -> Iterator[str]:
    """Take in what the fault handler wrote: a fatal signal, or that the process was told to end.

    Only SIGTERM and fatal signals write there; a fatal one says its name. Yields what is wrong with
    the file where there is one.
    """
    data = _content(path)
    if isinstance(data, str):
        if os.path.lexists(path):
            yield f"{path.name}: {data}"
        return
    if not data.strip():
        return
    text = data[:_MAX_STACKS].decode("utf-8", "replace")
    found = _FATAL.search(text)
    if found is None:
        rank.was_asked = True
        return
    own = text[found.end() :].split("\n\n")
    stack = next((part for part in own if part.lstrip().startswith("Current thread")), "")
    frames = [f"{file}:{line}:{name}" for file, line, name in _FRAME.findall(stack)]
    rank.fatal = Died(
        type=_SIGNALS.get(found[1], found[1]),
        text=found[1],
        # The fault handler writes the innermost frame first.
        frames=tuple(reversed(frames[:64])),
        statement="",
        time_s=rank.last_s,
    )
