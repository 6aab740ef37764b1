"""Known rules: which builds a rule is about, and whether an outcome is what the rule describes.

Standard library and ``packaging`` only, so that the rank leader can judge outcomes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from harness.record.path import SHARED_PLAN
from harness.record.result import Attempt, FactValue
from harness.record.selection import BehaviourEvidence
from harness.record.verdict import Verdict
from harness.scenario.facts import FACTS
from harness.scenario.spec import ExpectSpec, KnownRule

VERSIONED = ("megatron_core", "cudnn_frontend")
"""Packages whose effective version rules may ask for."""

FACTS_BY_VERSION: tuple[tuple[str, str, dict[str, FactValue]], ...] = (
    (
        "cudnn_frontend",
        ">=1.26",
        {"mask_alignment": "top_left", "accepts_causal_offsets": True},
    ),
    (
        "cudnn_frontend",
        "<1.26",
        {"mask_alignment": "bottom_right", "accepts_causal_offsets": False},
    ),
)
"""Facts that a release is known for (https://github.com/NVIDIA/cudnn-frontend/pull/316)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EffectiveBuild:
    """What a scenario ran on, as far as ``known`` rules may ask.

    Attributes:
        facts: Probed facts; one that was not probed is absent or None.
        versions: Package to effective version: the modelled release where kernels are modelled,
            the installed one on hardware; absent or None when it is not installed.
        arch: ``sm90``, ``sm100``, or empty where no kernel took part.
        source: ``hardware`` or ``modelled`` (never ``auto``), or empty.
        overlays: Active overlays.
    """

    facts: Mapping[str, FactValue] = field(default_factory=dict)
    versions: Mapping[str, str | None] = field(default_factory=dict)
    arch: str = ""
    source: str = ""
    overlays: tuple[str, ...] = ()


def matching_rule(rules: Iterable[KnownRule], build: EffectiveBuild) -> KnownRule | None:
    """Return the first rule that is about this build, None when there is none."""
    for rule in rules:
        if all(_holds(key, wanted, build) for key, wanted in rule.when.items()):
            return rule
    return None


def _holds(key: str, wanted: bool | str | tuple[str, ...], build: EffectiveBuild) -> bool:
    """Tell whether one condition holds. What was not probed or installed holds for nothing."""
    if key in VERSIONED:
        return satisfies(build.versions.get(key), str(wanted))
    if key == "overlays":
        return set(build.overlays) == set(wanted if isinstance(wanted, tuple) else ())
    if key == "arch":
        return build.arch == wanted
    if key == "source":
        return build.source == wanted
    assert key in FACTS, f"condition {key} passed the file checks but is not in FACTS"
    found = build.facts.get(key)
    return found is not None and found == wanted


def satisfies(version: str | None, specifier: str) -> bool:
    """Tell whether a version meets a PEP 440 specifier; pre-releases count, odd strings never.

    Args:
        version: Such as ``1.32.0`` or ``0.20.0rc0``; None (not installed) meets nothing.
        specifier: Such as ``>=1.24,<1.26``.
    """
    if version is None:
        return False
    try:
        return SpecifierSet(specifier).contains(Version(version), prereleases=True)
    except InvalidVersion:
        return False


def fact_disagreements(
    facts: Mapping[str, FactValue], versions: Mapping[str, str | None]
) -> tuple[str, ...]:
    """Say where probed facts differ from what the version string promises, one sentence each.

    The facts win: versions are strings that forks and back-ports leave unchanged.
    """
    found = []
    for package, specifier, promised in FACTS_BY_VERSION:
        if not satisfies(versions.get(package), specifier):
            continue
        for name, value in promised.items():
            probed = facts.get(name)
            if probed is not None and probed != value:
                found.append(
                    f"{package} {versions[package]} promises {name} = {value}, "
                    f"the probe found {probed}; rules follow the probe"
                )
    return tuple(found)


@dataclass(frozen=True, kw_only=True, slots=True)
class Observed:
    """What an attempt showed, as far as ``known`` rules describe it.

    Attributes:
        behaviours: Faulty behaviours whose prediction explains every judged row.
        wrong_values: Names of values beyond their tolerance.
        plans: Canonical plans that layers took.
        deviations: Kinds of deviations of path and layout memo.
        wrong_tables: Layout tables that differ.
        kernel: Kernel of the address fault, if there is one.
        exception: Qualified class name of the exception of the first faulty rank.
        text: Text of that exception.
    """

    verdict: Verdict
    behaviours: frozenset[str] = frozenset()
    wrong_values: frozenset[str] = frozenset()
    plans: frozenset[str] = frozenset()
    deviations: frozenset[str] = frozenset()
    wrong_tables: frozenset[str] = frozenset()
    phase: str | None = None
    kernel: str | None = None
    exception: str | None = None
    text: str = ""


def observe(attempt: Attempt) -> Observed:
    """Reduce an attempt to what rules describe."""
    fault = attempt.fault
    first = None if fault is None else fault.global_rank
    raised = next(
        (
            rank.exception
            for rank in attempt.ranks
            if rank.exception is not None and first in (None, rank.global_rank)
        ),
        None,
    )
    address = None if raised is None else raised.address_fault
    return Observed(
        verdict=attempt.verdict,
        behaviours=explained_by(attempt.behaviours),
        wrong_values=frozenset(value.name for value in attempt.values if not value.within),
        plans=frozenset(path.plan for path in attempt.paths if path.plan != SHARED_PLAN),
        wrong_tables=frozenset(item.table for item in attempt.layouts if not item.equal),
        deviations=frozenset(deviation.kind for deviation in attempt.deviations),
        phase=None if fault is None or fault.phase is None else str(fault.phase),
        kernel=None if address is None else address.kernel,
        exception=None if raised is None else raised.type,
        text="" if raised is None else raised.text,
    )


def explained_by(evidence: Iterable[BehaviourEvidence]) -> frozenset[str]:
    """Names of behaviours that explain every row of every record, and tell something in one.

    A behaviour whose prediction equals the right picks everywhere explains nothing.
    """
    records = list(evidence)
    return frozenset(
        name
        for name in {record.name for record in records}
        if all(record.holds for record in records if record.name == name)
        and any(record.rows_telling for record in records if record.name == name)
    )


def rule_holds(rule: KnownRule, attempt: Attempt) -> tuple[bool, str]:
    """Tell whether a rule describes an attempt in full, and if not, why not."""
    why = mismatch(rule, observe(attempt))
    return why is None, why or ""


def mismatch(rule: KnownRule, observed: Observed) -> str | None:
    """Say why an outcome is not what a rule describes.

    Returns:
        None when the rule describes it in full, else one sentence.
    """
    if observed.verdict is not rule.verdict:
        return f"the rule says {rule.verdict}, the run showed {observed.verdict}"
    if rule.behaviour is not None and rule.behaviour not in observed.behaviours:
        return f"the picks are not those that {rule.behaviour} predicts"
    for names, wrong in (
        (rule.values, observed.wrong_values),
        (rule.tables, observed.wrong_tables),
    ):
        if names and set(names) != wrong:
            return f"the rule says that {_listed(names)} are wrong, the run showed {_listed(wrong)}"
    if rule.deviations and set(rule.deviations) != observed.deviations:
        return (
            f"the rule says deviations {_listed(rule.deviations)}, the run showed "
            f"{_listed(observed.deviations)}"
        )
    for what, wanted, seen in (
        ("plan", rule.plan, observed.plans),
        ("deviation", rule.deviation, observed.deviations),
    ):
        if wanted is not None and seen != {wanted}:
            return f"the rule says {what} {wanted}, the run showed {_listed(seen)}"
    pairs = (
        ("phase", rule.phase, observed.phase),
        ("kernel", rule.kernel, observed.kernel),
        ("exception", rule.exception, _as_written(observed.exception, rule.exception)),
    )
    for what, wanted, found in pairs:
        if wanted is not None and wanted != found:
            return f"the rule says {what} {wanted}, the run showed {found or 'none'}"
    missing = facts_missing(rule.text_has, observed.text)
    return f"the rule says that {missing}" if missing else None


def expectation_missed(expect: ExpectSpec, attempt: Attempt) -> str | None:
    """Say why a run that ended in the expected verdict did not do so in the expected words.

    Returns:
        None when exception and text are as expected, else one sentence.
    """
    observed = observe(attempt)
    found = _as_written(observed.exception, expect.exception)
    if expect.exception is not None and found != expect.exception:
        return f"expected exception {expect.exception}, the run showed {found or 'none'}"
    missing = facts_missing(expect.text_has, observed.text)
    return f"expected that {missing}" if missing else None


def facts_missing(facts: Iterable[str], text: str) -> str | None:
    """Say which facts an exception's text lacks; a number counts only where it stands alone.

    >>> facts_missing(["seq_len=61"], "got seq_len=610")
    "the text says seq_len=61; it says: got seq_len=610"
    """
    missing = [fact for fact in facts if not _says(text, fact)]
    if not missing:
        return None
    return f"the text says {' and '.join(missing)}; it says: {text.strip() or 'nothing'}"


def _says(text: str, fact: str) -> bool:
    # The borders keep 61 from being found in 610, 161 and 61.5.
    return re.search(rf"(?<![\w.]){re.escape(fact)}(?!\w|\.\d)", text) is not None


def _listed(found: Iterable[str]) -> str:
    return ", ".join(sorted(found)) or "none"


def _as_written(found: str | None, wanted: str | None) -> str | None:
    """A rule may give an exception's class name with or without its module."""
    if found is None or wanted is None or "." in wanted:
        return found
    return found.rpartition(".")[2]
