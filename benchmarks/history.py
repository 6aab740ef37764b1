"""Adding a night to a year of nights: 400 scenarios, 365 nights, all trends judged and shown.

    python benchmarks/history.py [--nights 365] [--scenarios 400] [--check]

Prints wall and CPU time of one added night (aim: under 2 s together with its pages) and of building
the index anew, and both as multiples of reading one night's file. ``--check`` exits 1 beyond the
aim in CPU time, which other work on the machine does not stretch.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness.record.verdict import Outcome, Verdict
from reports.history.index import Index
from reports.history.night import Entry, Night, NightKey
from reports.history.pages import write_pages
from reports.history.store import append, night_files, read_night
from reports.history.telling import tell_night

AIM_S = 2.0


def make_night(day: int, scenarios: int, rng: random.Random) -> Night:
    key = NightKey(arch="cpu", provider="local", suite="nightly", versions={"torch": "2.13.0"})
    entries = tuple(
        Entry(
            id=f"family-{number % 20}/scenario-{number}[cp4]",
            content_hash="0" * 12,
            verdict=Verdict.PASS,
            outcome=Outcome.EXPECTED,
            plan="packed_thd",
            scorer="fused",
            origin="modelled 1.32.0 sm100",
            metrics={
                "pass": 1.0,
                "overlap": 1.0,
                "strict_overlap": 0.99,
                "time_s": 1.0 + rng.gauss(0.0, 0.01),
                "score_s": 0.1 + rng.gauss(0.0, 0.001),
                "layout_s": 0.05 + rng.gauss(0.0, 0.0005),
                "peak_rss_mib": 500.0 + rng.random(),
            },
        )
        for number in range(scenarios)
    )
    started = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=day)
    return Night(
        started_at=started.isoformat(timespec="seconds"),
        name="nightly",
        folder=f"night-{day}",
        key=key,
        exit_code=0,
        num_asked=scenarios,
        entries=entries,
    )


def timed(what: str, action: object) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    action()  # type: ignore[operator]
    spent = time.perf_counter() - wall, time.process_time() - cpu
    print(f"{what:<32} {spent[0]:7.2f} s wall {spent[1]:7.2f} s CPU")
    return spent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nights", type=int, default=365)
    parser.add_argument("--scenarios", type=int, default=400)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    rng = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder)
        index = store / "index.sqlite"
        for day in range(options.nights):
            append(store, make_night(day, options.scenarios, rng))
        tonight = make_night(options.nights, options.scenarios, rng)
        rebuilt = timed("index of all nights, anew", lambda: Index(store, index).close())

        def add() -> None:
            append(store, tonight)
            told = tell_night(store, tonight, index_path=index)
            write_pages(store, told)

        added = timed("one night added, told and shown", add)
        last = night_files(store)[-1]
        read = timed("one night's file read", lambda: read_night(last))
    print(f"added / read   {added[1] / read[1]:8.1f}")
    print(f"rebuilt / read {rebuilt[1] / read[1]:8.1f}")
    good = added[1] <= AIM_S
    print(f"aim {AIM_S:.0f} s of CPU for a night: {'met' if good else 'missed'}")
    return 0 if good or not options.check else 1


if __name__ == "__main__":
    sys.exit(main())
