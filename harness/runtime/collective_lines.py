"""Journal lines of collective calls, read back as calls. Standard library only.

{"t": 812.4, "e": "group", "name": "1", "label": "CP", "ranks": [0, 1]}
{"t": 812.4, "e": "collective", "n": 7, "group": "1", "seq": 3, "op": "all_gather", ...}
{"t": 812.5, "e": "returned", "n": 7}
{"t": 812.5, "e": "returned", "n": 8, "error": "RuntimeError"}
{"t": 812.6, "e": "waiting", "n": 9}
{"t": 812.7, "e": "completed", "n": 9}
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from harness.record.collective import CollectiveCall

GROUP = "group"
"""Event of a group's first use on a rank."""
CALL = "collective"
"""Event just before a call."""
END = "returned"
"""Event just after it."""
WAIT = "waiting"
"""Event before the wait for an asynchronous call."""
DONE = "completed"
"""Event after that wait."""
EVENTS = frozenset({GROUP, CALL, END, WAIT, DONE})
"""All of them."""


class CallReading:
    """Turns one rank's lines into calls; lines that a cut journal lacks are simply not there."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, Any]] = {}
        self._calls: dict[int, CollectiveCall] = {}

    def take(self, item: dict[str, Any]) -> None:
        """Take in one line.

        Raises:
            KeyError, TypeError, ValueError: if the line is not of this form.
        """
        match item["e"]:
            case "group":
                ranks = tuple(int(rank) for rank in item["ranks"])
                self._groups[item["name"]] = {"label": str(item["label"]), "ranks": ranks}
            case "collective":
                self._calls[int(item["n"])] = self._call(item)
            case "returned" | "waiting" | "completed" as end:
                error = item.get("error")
                end = f"raised {error}" if error else end
                number = int(item["n"])
                self._calls[number] = replace(self._calls[number], end=end)

    def _call(self, item: dict[str, Any]) -> CollectiveCall:
        name = str(item["group"])
        return CollectiveCall(
            group=name,
            **self._groups.get(name, {}),
            sequence=int(item["seq"]),
            operation=str(item["op"]),
            inputs=_shapes(item.get("in", [])),
            outputs=_shapes(item.get("out", [])),
            dtype=str(item.get("dtype", "")),
            reduction=str(item.get("reduce", "")),
            peer=item.get("peer"),
            pairwise=bool(item.get("pair", False)),
            blocking=not item.get("async", False),
            at=tuple(map(str, item.get("at", []))),
            time_s=float(item["t"]),
        )

    def calls(self) -> tuple[CollectiveCall, ...]:
        """Return the calls in the order made."""
        return tuple(self._calls[number] for number in sorted(self._calls))


def _shapes(data: list[list[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(int(size) for size in shape) for shape in data)
