"""``plan.json``: all that a run set out to do, so that others can finish or report it.

Written before the first scenario starts and never again. The scenario files need not exist any
more: the plan holds every scenario as resolved. Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness.record.files import RecordFileError, read_record, write_record
from harness.runtime.options import Isolation, Options, Supervision
from harness.runtime.plan import Planned
from harness.runtime.world import World

PLAN_FILE = "plan.json"
"""Name of the plan inside a run folder."""
PLAN_VERSION = 1
"""Raised when a plan means something else than it did, not for fields with a default."""


class PlanError(ValueError):
    """A folder holds no plan that can be used; the message says what to change."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunPlan:
    """What a run set out to do.

    Attributes:
        options: The command line as parsed.
        isolation: As it was settled.
        supervision: As it was settled.
        world: Ranks of the run, as its leader saw them.
        scenarios: In the order in which they run.
    """

    plan_version: int = PLAN_VERSION
    options: Options
    isolation: Isolation
    supervision: Supervision
    world: World
    scenarios: tuple[Planned, ...]


def write_plan(folder: Path, plan: RunPlan) -> None:
    """Write the plan of a run folder.

    Raises:
        OSError: if it cannot be written.
    """
    write_record(folder / PLAN_FILE, plan)


def read_plan(folder: Path) -> RunPlan:
    """Read the plan of a run folder.

    Raises:
        PlanError: if there is none, or one of another version.
    """
    if not folder.is_dir():
        what = "a file" if folder.exists() else "nothing of that name"
        raise PlanError(f"{folder}: expected a run folder, found {what}; give runs/<time>-<name>")
    if not (folder / PLAN_FILE).exists():
        raise PlanError(
            f"{folder}: expected a run folder with {PLAN_FILE}, found none; give "
            "runs/<time>-<name> of a run that got as far as its first scenario"
        )
    try:
        version = read_record(folder / PLAN_FILE, dict[str, object]).get("plan_version")
        if version != PLAN_VERSION:
            raise PlanError(
                f"{folder / PLAN_FILE}: expected plan_version {PLAN_VERSION}, found {version!r}; "
                "use the harness version that started the run, or start it anew"
            )
        return read_record(folder / PLAN_FILE, RunPlan)
    except RecordFileError as error:
        raise PlanError(f"{error}; start the run anew") from error
