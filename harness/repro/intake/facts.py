"""What texts say, each saying with the line it stands in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from harness.repro.intake.lines import Line

Value = bool | int | float | str | tuple[int, ...] | tuple[str, ...] | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Fact:
    """One saying.

    Attributes:
        name: What it is about: Megatron's name of an argument, or a name of ``READERS``.
        value: Its value; None where the text says None. Of a list of lengths that cannot be used, a
            text that says why.
        line: Where it stands.
        form: Form of the text, such as ``argument dump``.
    """

    name: str
    value: Value
    line: Line
    form: str


@dataclass(slots=True)
class Facts:
    """All sayings, in the order of the files.

    Attributes:
        all: Each of them.
    """

    all: list[Fact] = field(default_factory=list)

    def add(self, facts: Iterable[Fact]) -> None:
        """Add sayings."""
        self.all += facts

    def of(self, *names: str) -> tuple[Fact, ...]:
        """Sayings of some names."""
        return tuple(fact for fact in self.all if fact.name in names)

    def first(self, *names: str) -> Fact | None:
        """First saying of some names."""
        return next(iter(self.of(*names)), None)

    def agreed(self, name: str) -> Fact | None:
        """The saying where all texts say the same; None where there is none, or they differ."""
        found = self.of(name)
        longest = max(found, key=lambda fact: len(str(fact.value)), default=None)
        if longest is None or not all(_agree(fact.value, longest.value) for fact in found):
            return None
        return next(fact for fact in found if fact.value == longest.value)

    def number(self, name: str) -> int | None:
        """An agreed whole number."""
        found = self.agreed(name)
        value = None if found is None else found.value
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def conflicts(self) -> Iterator[tuple[str, tuple[Fact, ...]]]:
        """Names about which texts say different things, with one saying for each value."""
        for name in dict.fromkeys(fact.name for fact in self.all):
            values: dict[Value, Fact] = {}
            for fact in self.of(name):
                values.setdefault(fact.value, fact)
            if self.agreed(name) is None and name not in MANY:
                yield name, tuple(values.values())

    def forms(self) -> dict[str, dict[str, int]]:
        """Forms recognised in each file, with the number of sayings."""
        found: dict[str, dict[str, int]] = {}
        for fact in self.all:
            forms = found.setdefault(fact.line.file, {})
            forms[fact.form] = forms.get(fact.form, 0) + 1
        return found


def _agree(one: Value, longest: Value) -> bool:
    """Whether two values are the same; a version may be given with or without its local part."""
    if isinstance(one, str) and isinstance(longest, str) and one[:1].isdigit():
        return longest.startswith(one)
    return one == longest and isinstance(one, bool) == isinstance(longest, bool)


MANY = frozenset(
    {
        "cu_seqlens_q",
        "cu_seqlens_kv",
        "cu_seqlens_q_padded",
        "cu_seqlens_kv_padded",
        "sequences",
        "exception",
        "frame",
        "signal",
        "cuda_error",
        "collective_timeout",
        "out_of_memory",
        "time_limit",
        "node_failure",
        "failed_rank",
        "exit",
        "exit_code",
        "scheduler",
        "nan",
        "cp_rank",
        "local_cp_size",
        "kernel",
        "recompile",
        "graph_warning",
        "fallback",
        "variable",
    }
)
"""Names that may be said many times with different values."""
