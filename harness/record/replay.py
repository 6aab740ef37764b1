"""Replay evidence: what backward computed again of a layer's attention, against its forward."""

from __future__ import annotations

from dataclasses import dataclass

MICROBATCH, STEP = "microbatch", "step"


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayEvidence:
    """One layer of one microbatch on one rank.

    Attributes:
        scope: ``microbatch`` where it ran forward and backward alone, ``step`` where others ran in
            between, by the schedule.
        replays: How often backward computed the attention again.
        group: Ranks over which the forward gathered keys, such as ``0 1``; empty where nothing was
            gathered.
        replay_group: The same of the replay.
        path: Scorer of the forward, as path evidence names it.
        replay_path: The same of the replay, which alone computes the indexer's loss.
        tables: Layout tables compared.
        tables_different: Names of those that the replay was served otherwise.
        rows: Real rows compared.
        rows_different: Of these, rows with other keys.
        rows_tied: Of these, rows in which the other keys score the same.
        first_different: Local row of the first one that is no tie.
    """

    global_rank: int
    cp_rank: int
    microbatch: int
    layer: int
    seed: int
    scope: str
    replays: int
    group: str = ""
    replay_group: str = ""
    path: str = ""
    replay_path: str = ""
    tables: int = 0
    tables_different: tuple[str, ...] = ()
    rows: int = 0
    rows_different: int = 0
    rows_tied: int = 0
    first_different: int | None = None

    @property
    def differences(self) -> tuple[str, ...]:
        """What the replay did not take from its forward, in words; empty where all is equal."""
        found = []
        if self.replays and self.group != self.replay_group:
            found.append(f"gathered over ranks [{self.replay_group}], the forward [{self.group}]")
        if self.tables_different:
            found.append(f"was served other {', '.join(self.tables_different)}")
        wrong = self.rows_different - self.rows_tied
        if wrong:
            found.append(
                f"attends with other keys in {wrong} of {self.rows} rows, first in row "
                f"{self.first_different}"
            )
        return tuple(found)
