"""What collectors look at between the cases of a scenario; a level fills it in once built."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from harness.evidence.memo import TableLedger


@dataclass(slots=True)
class Watched:
    """Objects whose state must outlast a microbatch unchanged.

    Attributes:
        module: The production module, None at level ``scorer`` and before it is built.
        config: Megatron's configuration.
        tables: Layout tables that were served so far.
        before: State at the beginning of the current case, None where nobody looks.
        set_apart: Whether looks at memory leave out what was there before the first of them.
    """

    module: Any = None
    config: Any = None
    before: Any = None
    set_apart: bool = False
    tables: TableLedger = field(default_factory=TableLedger)
