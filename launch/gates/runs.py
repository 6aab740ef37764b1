"""Gates that are runs: ``python -m launch.gates.runs VERDICT [--phase P] [--core-dump] WORDS...``.

A run of one scenario in a folder that is thrown away; the gate holds when its verdict, and where
given the phase of its first fault, are those expected.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from harness.record.result import Attempt
from harness.record.verdict import ExitCode, Verdict
from launch.other_run import run_elsewhere


def main(arguments: list[str]) -> int:
    """Run and compare; the last line printed is the finding."""
    parser = argparse.ArgumentParser(prog="python -m launch.gates.runs")
    parser.add_argument("verdict", type=Verdict)
    parser.add_argument("--phase", default=None)
    parser.add_argument("--core-dump", action="store_true")
    parser.add_argument("--finding", action="store_true", help="A sanitizer must have found it.")
    given, words = parser.parse_known_args(arguments)
    with tempfile.TemporaryDirectory(prefix="dsa-harness-selftest-") as out:
        folder, code = run_elsewhere([*words, "--out", out])
        if folder is None:
            print(f"the run did not start, exit code {code}")  # noqa: T201
            return code or int(ExitCode.HARNESS_ERROR)
        return _compare(folder, given)


def _compare(folder: Path, given: argparse.Namespace) -> int:
    from reports.store import load_run

    (result,) = load_run(folder).results
    attempt = result.last
    if attempt.verdict is Verdict.NOT_RUN:
        return _say(ExitCode.NOTHING_RAN, f"missing {attempt.missing_capability}")
    wrong = list(_problems(attempt, given))
    if wrong:
        return _say(ExitCode.CHECK_FAILED, "; ".join(wrong))
    return _say(ExitCode.OK, f"{result.id}: {_told(attempt)}")


def _problems(attempt: Attempt, given: argparse.Namespace) -> list[str]:
    wrong = []
    if attempt.verdict is not given.verdict:
        wrong.append(f"expected {given.verdict}, found {_told(attempt)}")
    phase = attempt.fault.phase if attempt.fault is not None else None
    if given.phase is not None and phase != given.phase:
        wrong.append(f"expected the first fault in phase {given.phase}, found {phase}")
    if given.core_dump and not attempt.core_dumps:
        wrong.append("expected a core dump, found none")
    if given.finding and not attempt.sanitizer:
        wrong.append("expected a finding of the sanitizer, found none")
    return wrong


def _told(attempt: Attempt) -> str:
    if attempt.fault is None:
        return str(attempt.verdict)
    return f"{attempt.verdict} in phase {attempt.fault.phase}: {attempt.fault.cause}"


def _say(code: ExitCode, text: str) -> int:
    print(text)  # noqa: T201 (the gate's last line is its finding)
    return int(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
