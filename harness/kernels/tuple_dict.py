"""The frontend's result object: a dict that unpacks like a tuple of its values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


class TupleDict(dict[str, Any]):
    """Named results of a wrapper, with the two quirks that callers can observe.

    Iterating (and so unpacking) yields the values in key order, not the keys, and an integer
    subscript returns the n-th value. ``keys()``, ``in`` and ``len()`` stay a dict's.
    """

    def __iter__(self) -> Iterator[Any]:
        return iter([dict.__getitem__(self, key) for key in self.keys()])

    def __getitem__(self, key: str | int) -> Any:
        if isinstance(key, int):
            names = list(self.keys())
            if not 0 <= key < len(names):
                raise IndexError(f"result {key} of {len(names)} named results {names}")
            return dict.__getitem__(self, names[key])
        return dict.__getitem__(self, key)
