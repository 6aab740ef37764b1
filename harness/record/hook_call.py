"""Evidence of a call of another party's backend hook: what the dispatcher passed, what was due."""

from __future__ import annotations

from dataclasses import dataclass, field

REUSED, ALIVE, ELSEWHERE = "reused", "alive", "elsewhere"
"""What became of the id of the callable before: this one has it; the build keeps that callable, so
that nobody can have it; or none of the two, so that nothing is proved."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HookCallEvidence:
    """One call on one rank.

    Attributes:
        hook: Name of the hook in the backend module.
        signature: What the dispatcher could learn of the hook, a name of
            ``harness.scenario.names.HOOK_SIGNATURES``; of a ``replaced`` one, ``var_keyword`` or
            ``exact``.
        cp_size: Effective CP size of the call.
        given: Facts of the layout that were passed, name to value.
        due: Facts of the layout that had to be passed, name to value.
        barred: Facts that were passed although the hook does not take them as keywords.
        unknown: Other keywords that were passed and that the released hook does not have.
        missing: Keywords of the released hook that were not passed.
        num_positional: Positional arguments passed; none is due.
        before: Of a ``replaced`` hook, what became of the id of the callable before; empty for
            others and for the first one.
    """

    global_rank: int
    cp_rank: int
    microbatch: int
    layer: int
    seed: int
    hook: str
    signature: str
    cp_size: int
    given: dict[str, str] = field(default_factory=dict)
    due: dict[str, str] = field(default_factory=dict)
    barred: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    num_positional: int = 0
    before: str = ""

    @property
    def faults(self) -> tuple[str, ...]:
        """What is wrong with the call, in words; empty for a right one."""
        found = []
        refused = (*self.barred, *self.unknown)
        if refused:
            found.append(f"passed {', '.join(refused)}, which the hook does not take")
        dropped = [name for name in self.due if name not in self.given]
        absent = (*self.missing, *dropped)
        if absent:
            found.append(f"did not pass {', '.join(absent)}")
        found += [
            f"passed {name} = {value}, due is {self.due[name]}"
            for name, value in self.given.items()
            if name in self.due and value != self.due[name]
        ]
        if self.num_positional:
            found.append(f"passed {self.num_positional} arguments by position")
        return tuple(found)
