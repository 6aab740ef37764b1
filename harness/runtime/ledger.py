"""The results of a run as they come: attempts are numbered, judged, written and told of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from harness.record.result import Attempt, ScenarioResult
from harness.runtime import commands
from harness.runtime.attempts import Executed
from harness.runtime.ends import append
from harness.runtime.options import Options
from harness.runtime.plan import Planned
from harness.runtime.progress import Progress
from harness.runtime.resume import attempts_due
from harness.runtime.run_folder import RunFolder
from harness.runtime.storage import check_stored
from harness.runtime.verdicts import Verdicts
from harness.runtime.world import World


class Ledger:
    """Keeps every attempt of every scenario; a result file is whole after each of them.

    Attributes:
        results: By scenario id, in the order in which they came.
    """

    def __init__(
        self,
        folder: RunFolder,
        world: World,
        options: Options,
        progress: Progress,
        results: Mapping[str, ScenarioResult],
    ) -> None:
        """Go on from ``results``, which a run that is resumed has already.

        Raises:
            ImportError: if there is no judge of the name that the options give.
        """
        self.results = dict(results)
        self._folder = folder
        self._world = world
        self._options = options
        self._progress = progress
        self._verdicts = Verdicts(options.judge, options.inject)

    def due(self, item: Planned) -> int:
        """Return how many attempts of a scenario are still to be made."""
        return attempts_due(item, self.results.get(item.scenario.id))

    def next_number(self, item: Planned) -> int:
        """Return the number of a scenario's next attempt."""
        result = self.results.get(item.scenario.id)
        used = [attempt.number for attempt in result.attempts] if result is not None else []
        return max(used, default=0) + 1

    def executed(self, item: Planned, number: int, done: Executed) -> None:
        """Write down what an attempt left, and judge it.

        Raises:
            StorageError: if a rank could not write its journal.
        """
        check_stored(done.ranks, self._folder.path)
        append(self._folder.place(item.scenario.id, number), done.end)
        self._conclude(item, self._verdicts.attempt(item, number, done))

    def failed(self, item: Planned, number: int, reason: str) -> None:
        """Write down that the harness failed around an attempt."""
        self._conclude(item, self._verdicts.failed(item, number, reason))

    def missing(self, item: Planned, missing: str) -> None:
        """Write down that there is nothing here to run a scenario on."""
        self._conclude(item, self._verdicts.not_run(item, self.next_number(item), missing))

    def lose(self, rest: Iterable[Planned], missing: str) -> None:
        """Write down that the run lost what the rest needs; resumed, it tries them again."""
        for item in {item.scenario.id: item for item in rest}.values():
            self._progress.begin(item.scenario.id)
            number = self.next_number(item)
            self._conclude(item, self._verdicts.not_run(item, number, missing, cut_short=True))

    def _conclude(self, item: Planned, attempt: Attempt) -> None:
        scenario_id = item.scenario.id
        before = self.results.get(scenario_id)
        attempts = (*(before.attempts if before is not None else ()), attempt)
        rerun = commands.rerun_scenario(self._world, self._options, item.file, scenario_id)
        result = self._verdicts.result(item, attempts, rerun)
        self.results[scenario_id] = result
        self._folder.write_result(result)
        self._progress.finish(result, item.repeat)
