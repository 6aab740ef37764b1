"""Journals the waits for asynchronous collective calls of a rank.

``Work.wait`` is native: a rank that hangs in it shows the frame of whoever called it, as if it were
busy there.
"""

from __future__ import annotations

import functools
import json
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from harness.runtime.collective_lines import DONE, WAIT

if TYPE_CHECKING:
    from harness.runtime.journal import Journal

Wait = Callable[..., Any]


class Waits:
    """Knows which call each unfinished ``Work`` of a rank belongs to."""

    def __init__(self, journal: Journal) -> None:
        """Write to ``journal``."""
        self._journal = journal
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def expect(self, result: Any, number: int) -> None:
        """Remember the call that returned ``result``, where that can be waited for."""
        import torch.distributed as dist

        if isinstance(result, dist.Work):
            self._numbers[result] = number

    def number(self, work: Any) -> int | None:
        """Return the number of the call that a ``Work`` belongs to, None for a stranger."""
        return self._numbers.get(work)

    def begin(self, number: int) -> None:
        """Write the line before a wait."""
        self._journal.put(f'"e": "{WAIT}", "n": {number}')

    def end(self, number: int, error: BaseException | None) -> None:
        """Write the line after it."""
        more = f', "error": {json.dumps(type(error).__name__)}' if error is not None else ""
        self._journal.put(f'"e": "{DONE}", "n": {number}{more}')


def wrapped_wait(original: Wait, current: Callable[[], Waits | None]) -> Wait:
    """Return ``Work.wait`` with its journal lines.

    Args:
        original: The method.
        current: Who journals waits now, if anybody.
    """

    @functools.wraps(original)
    def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
        waits = current()
        number = waits.number(work) if waits is not None else None
        if waits is None or number is None:
            return original(work, *args, **kwargs)
        waits.begin(number)
        try:
            result = original(work, *args, **kwargs)
        except BaseException as error:
            waits.end(number, error)
            raise
        waits.end(number, None)
        return result

    return wait
