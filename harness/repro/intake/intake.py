"""Puts the parts together: files in; facts, draft, candidates and questions out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.repro.intake.arguments import argument_facts
from harness.repro.intake.draft import Draft, draft_of
from harness.repro.intake.facts import Facts
from harness.repro.intake.faults import fault_facts
from harness.repro.intake.kinds import Candidate
from harness.repro.intake.layouts import layout_facts
from harness.repro.intake.lines import MAX_FILES, Gap, IntakeError, read_text
from harness.repro.intake.questions import Question, questions
from harness.repro.intake.signs import candidates
from harness.repro.intake.software import software_facts


@dataclass(frozen=True, kw_only=True, slots=True)
class Intake:
    """What files say.

    Attributes:
        num_lines: Lines of each file.
        gaps: What is not read of huge files, by file.
    """

    num_lines: dict[str, int]
    gaps: dict[str, Gap]
    facts: Facts
    draft: Draft
    candidates: tuple[Candidate, ...]
    questions: tuple[Question, ...]


def take_in(paths: Sequence[Path]) -> Intake:
    """Read files.

    Raises:
        IntakeError: for a file that is no text, or too many of them.
    """
    if len(paths) > MAX_FILES:
        raise IntakeError(f"expected at most {MAX_FILES} files, found {len(paths)}; choose some")
    facts, num_lines = Facts(), {}
    gaps: dict[str, Gap] = {}
    for path in paths:
        text = read_text(path)
        lines = text.lines
        num_lines[str(path)] = text.num_lines
        if text.gap is not None:
            gaps[str(path)] = text.gap
        facts.add(fault_facts(lines))
        facts.add(software_facts(lines))
        facts.add(argument_facts(lines))
        facts.add(layout_facts(lines))
    draft = draft_of(facts)
    return Intake(
        num_lines=num_lines,
        gaps=gaps,
        facts=facts,
        draft=draft,
        candidates=candidates(facts, draft),
        questions=questions(facts, draft),
    )
