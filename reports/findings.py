"""The sentences of a failure block, made from typed evidence and shared by all documents."""

from __future__ import annotations

from collections.abc import Iterator

from harness.record.codec import DecodeError, from_jsonable
from harness.record.evidence import ValueEvidence
from harness.record.path import PathEvidence
from harness.record.rate import Rate
from harness.record.rates import verdict_rates
from harness.record.result import Attempt, ScenarioResult
from harness.record.selection import OverlapStats, RowFinding, SelectionEvidence
from harness.record.verdict import Outcome, Verdict
from harness.scenario.spec import KnownRule
from reports.faults import fault_findings, first_exception, known_fault_text
from reports.finding import Finding
from reports.hook_calls import hook_findings
from reports.injected import never_struck
from reports.overlap import BehaviourTotal, behaviour_totals, worst, worst_row
from reports.perturbed import perturbed_findings
from reports.text import counted, last_line, number_ranges, ratio
from reports.windows import window_text


def findings(result: ScenarioResult) -> tuple[Finding, ...]:
    """Return what has to be said of a result that is not simply as expected, in reading order."""
    attempt = result.last
    found = [
        Finding(label="expected", text=result.expected),
        Finding(label="found", text=_found(attempt)),
    ]
    if result.explanation not in _said_anyway(attempt):
        found.append(Finding(label="why", text=result.explanation))
    if len(result.attempts) > 1:
        found.append(Finding(label="attempts", text=_attempts(result)))
        found += [Finding(label="rate", text=text) for text in rate_texts(result)]
    if attempt.cut_short is not None:
        found.append(Finding(label="cut short", text=attempt.cut_short))
    if attempt.missing_capability is not None:
        found.append(Finding(label="missing", text=attempt.missing_capability))
    found += fault_findings(attempt)
    # A note of many lines is a traceback of the harness: its last line says what was raised.
    found += [
        Finding(label="error", text=f"{note.topic}: {last_line(note.text)}")
        for note in attempt.notes
        if _is_long(note.text)
    ]
    found += _check_findings(attempt)
    if attempt.proof.overlays:
        found.append(Finding(label="overlays", text=", ".join(attempt.proof.overlays)))
    if attempt.proof.injected:
        found.append(Finding(label="injected", text=", ".join(attempt.proof.injected)))
    if spared := never_struck(attempt):
        found.append(Finding(label="never struck", text=spared))
    found += perturbed_findings(attempt.perturbations)
    found += hook_findings(attempt.hook_calls)
    return tuple(found)


def _said_anyway(attempt: Attempt) -> tuple[str, ...]:
    """Explanations that would only repeat another line of the block."""
    cause = "" if attempt.fault is None else attempt.fault.cause
    return ("", cause, ", ".join((attempt.verdict, *attempt.secondary)))


def _found(attempt: Attempt) -> str:
    also = ", ".join(attempt.secondary)
    return f"{attempt.verdict}, also {also}" if also else str(attempt.verdict)


def _attempts(result: ScenarioResult) -> str:
    others = ", ".join(
        f"{attempt.number} {attempt.verdict}" + (" (cut short)" if attempt.cut_short else "")
        for attempt in result.attempts
        if attempt is not result.last
    )
    number = counted(len(result.attempts), "attempt")
    return f"{number}, number {result.last.number} decides; the others: {others}"


def rate_texts(result: ScenarioResult) -> tuple[str, ...]:
    """Say how often each verdict came in repeated attempts, with its interval; none for one."""
    if len(result.attempts) < 2:
        return ()
    found: dict[str, Rate] = dict(result.rates)
    if not found:
        # Records of older versions hold the attempts alone.
        found = {str(verdict): rate for verdict, rate in verdict_rates(result.attempts).items()}
    return tuple(f"{verdict}: {rate.text}" for verdict, rate in found.items())


def excerpts(attempt: Attempt) -> tuple[Finding, ...]:
    """Return texts of many lines that are worth reading in full, such as a traceback."""
    raised = first_exception(attempt)
    found = [Finding(label=n.topic, text=n.text) for n in attempt.notes if _is_long(n.text)]
    if raised is not None and raised.traceback:
        found.insert(0, Finding(label="traceback of the first faulty rank", text=raised.traceback))
    return tuple(found)


def _is_long(text: str) -> bool:
    return "\n" in text.strip()


def _check_findings(attempt: Attempt) -> Iterator[Finding]:
    shown = {attempt.verdict, *attempt.secondary}
    if Verdict.WRONG_PATH in shown:
        for text in path_texts(attempt):
            yield Finding(label="path", text=text)
    record = worst(attempt.selections)
    if record is not None:
        yield Finding(label="worst rank", text=selection_text(record))
    row = worst_row(attempt.selections)
    if row is not None:
        yield Finding(label="worst row", text=row_text(*row))
    if attempt.windows:
        yield Finding(label="window", text=window_text(attempt.windows))
    for total in behaviour_totals(attempt.behaviours):
        yield Finding(label="behaviour", text=behaviour_text(total))
    value = _worst_value(attempt)
    if value is not None:
        yield Finding(label="worst value", text=value_text(value))
    for layout in [item for item in attempt.layouts if not item.equal][:1]:
        place = place_text(layout.cp_rank, layout.microbatch, layout.layer, layout.seed)
        yield Finding(label="layout", text=f"{layout.table} differs at {place}: {layout.detail}")


def place_text(cp_rank: int, microbatch: int, layer: int, seed: int) -> str:
    """Name the place of a piece of evidence."""
    return f"cp_rank {cp_rank}, microbatch {microbatch}, layer {layer}, seed {seed}"


def path_texts(attempt: Attempt) -> tuple[str, ...]:
    """Say which path ran and why, ranks with the same path together."""
    ranks: dict[str, set[int]] = {}
    for path in attempt.paths:
        ranks.setdefault(path_text(path), set()).add(path.cp_rank)
    if not ranks:
        return ("no path was proved on any rank",)
    return tuple(f"cp_rank {number_ranges(who)}: {text}" for text, who in ranks.items())


def path_text(path: PathEvidence) -> str:
    """Say which plan and scorer ran, with the reason and the calls."""
    calls = ", ".join(f"{name} {count}" for name, count in path.calls.items()) or "none"
    fused = "fused" if path.fused else "not fused"
    return (
        f"plan {path.plan} ({path.plan_source}), backend {path.backend}, scorer {path.scorer}, "
        f"{fused}; calls: {calls}; reason: {path.reason}"
    )


def selection_text(record: SelectionEvidence) -> str:
    """Give the overlap and all counts of one record."""
    total = record.total
    place = place_text(record.cp_rank, record.microbatch, record.layer, record.seed)
    return (
        f"{place}, stage {record.stage}: overlap {ratio(total.overlap)}, strict "
        f"{ratio(total.strict_overlap)}; {counts_text(total)}"
    )


def counts_text(total: OverlapStats) -> str:
    """List the counts of judged picks that are not zero."""
    names = ("tie", "below", "future", "foreign", "out_of_range", "missing", "duplicate")
    counts = {name: getattr(total, name) for name in names}
    shown = [f"{count} {name.replace('_', ' ')}" for name, count in counts.items() if count]
    text = f"of {total.due} due: " + ", ".join([f"{total.exact} exact", *shown])
    if total.below:
        text += f"; largest gap {total.largest_gap:.3g}"
    return text


def row_text(record: SelectionEvidence, row: RowFinding) -> str:
    """Describe one wrong row: where it is, what it may see, what was picked wrongly."""
    where = (
        f"{place_text(record.cp_rank, record.microbatch, record.layer, record.seed)}, sequence "
        f"{row.sequence}, row {row.row}, position {row.position}, limit {row.limit}"
    )
    wrong = f"wrong picks {_keys(row.wrong)}" if row.wrong else "no wrong pick"
    if any(key < 0 for key in row.wrong):
        wrong += " (counted from the sequence's first key: negative ones lie before it)"
    due = f"not picked {_keys(row.due)}" if row.due else "nothing due is missing"
    return f"{where}: {wrong}; {due}"


def _keys(keys: tuple[int, ...]) -> str:
    return ", ".join(str(key) for key in keys) + (" ..." if len(keys) >= 16 else "")


def behaviour_text(total: BehaviourTotal) -> str:
    """Say how far a named faulty behaviour explains the picks."""
    rows = (
        f"rows exhaustive {total.rows_exhaustive_exact} of {total.rows_exhaustive} exact, "
        f"rows beyond window {total.rows_beyond_window}"
    )
    if total.holds:
        return f"picks match {total.name} on every row: {rows}"
    if total.rows == total.rows_matching:
        return (
            f"{total.name} predicts the right picks on all {total.rows} rows, so it tells nothing"
        )
    text = f"picks match {total.name} on {total.rows_matching} of {total.rows} rows only: {rows}"
    if total.mismatch is not None:
        text += f"; first other row: cp_rank {total.mismatch[0]}, row {total.mismatch[1]}"
    return text


def _worst_value(attempt: Attempt) -> ValueEvidence | None:
    beyond = [value for value in attempt.values if not value.within]
    return max(beyond, key=_excess, default=None)


def _excess(value: ValueEvidence) -> float:
    """How far a value is out: its difference in units of what is allowed; NaN counts as most."""
    ratio_out = value.max_abs_diff / (value.tolerance_abs or 1e-30)
    return ratio_out if ratio_out == ratio_out else float("inf")


def value_text(value: ValueEvidence) -> str:
    """Compare a value with its reference, in the way of ``torch.testing.assert_close``."""
    place = place_text(value.cp_rank, value.microbatch, value.layer, value.seed)
    return (
        f"{value.name} at {place}: greatest absolute difference {value.max_abs_diff:.3g} "
        f"(up to {value.tolerance_abs:.3g} allowed), greatest relative difference "
        f"{value.max_rel_diff:.3g} (up to {value.tolerance_rel:.3g} allowed); {value.reason}"
    )


def known_rule(result: ScenarioResult) -> KnownRule | None:
    """Return the ``known`` rule that a known result meets: same verdict, its behaviour seen.

    The rule is read from the scenario that the result carries; None when nothing there fits.
    """
    if result.outcome is not Outcome.KNOWN:
        return None
    seen = {total.name for total in behaviour_totals(result.last.behaviours) if total.holds}
    fitting = [
        rule
        for rule in _rules(result)
        if rule.verdict is result.verdict and rule.behaviour in (None, *seen)
    ]
    # Which rule's conditions hold was judged when the scenario ran; its link is in the explanation.
    named = [rule for rule in fitting if rule.link and rule.link in result.explanation]
    return next(iter(named or fitting), None)


def _rules(result: ScenarioResult) -> Iterator[KnownRule]:
    rules = result.scenario.get("known")
    for data in rules if isinstance(rules, list) else []:
        try:
            yield from_jsonable(KnownRule, data)
        except DecodeError:
            # A rule written by a later version is no reason to lose the report.
            continue


def known_text(result: ScenarioResult) -> str:
    """Explain a known defect in one line: the behaviour the picks match, and the link."""
    rule = known_rule(result)
    totals = [t for t in behaviour_totals(result.last.behaviours) if t.holds]
    if rule is not None and rule.behaviour is not None:
        totals = [total for total in totals if total.name == rule.behaviour]
    parts = [behaviour_text(total) for total in totals[:1]]
    if not parts:
        parts = [text for text in (known_fault_text(result), result.explanation) if text][:1]
    parts = parts or [result.expected]
    if rule is not None and rule.link and rule.link not in parts[0]:
        parts.append(f"see {rule.link}")
    return "; ".join(parts)
