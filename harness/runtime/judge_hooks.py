"""Whether the dispatcher gave another party's backend hook what it was due, and no more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from harness.record.deviation import Deviation
from harness.record.hook_call import ELSEWHERE, REUSED, HookCallEvidence
from harness.record.result import FactValue
from harness.record.verdict import Verdict
from harness.runtime.journal import JournalContent
from harness.scenario.spec import Scenario


def hook_deviations(
    scenario: Scenario, journals: Sequence[JournalContent], facts: Mapping[str, FactValue]
) -> tuple[Deviation, ...]:
    """Return everything about the calls of a third party's hook that is not as it should be.

    Args:
        scenario: With or without such a hook.
        journals: One for each rank.
        facts: Probed facts of the build: one that offers no facts looks at no signature.
    """
    if scenario.kernels.third_party_hook.hook is None:
        return ()
    looks = facts.get("offers_layout_facts") is True
    return tuple(
        dict.fromkeys(item for journal in journals for item in _of_rank(journal, looks=looks))
    )


def _of_rank(journal: JournalContent, *, looks: bool) -> Iterator[Deviation]:
    calls = journal.of(HookCallEvidence)
    if not calls:
        text = "the third party's hook was never asked, so that nothing is known of its arguments"
        yield _deviation("unproved", text, journal.global_rank)
    for call in calls:
        site = f"microbatch {call.microbatch}, cp_size {call.cp_size}"
        if call.before == ELSEWHERE:
            text = (
                f"{site}: no new callable came to have the id of the dead one, so that a cache of "
                "signatures was not put to the test"
            )
            yield _deviation("unproved", text, call.global_rank)
        for fault in call.faults:
            stale = looks and call.before == REUSED
            kind = "stale_signature" if stale else "hook_keywords"
            text = f"{site}: {call.hook} of a third party ({_named(call)}): the dispatcher {fault}"
            yield _deviation(kind, text, call.global_rank)


def _named(call: HookCallEvidence) -> str:
    if call.before != REUSED:
        return f"signature {call.signature}"
    return f"signature {call.signature}, with the id of a dead callable of another signature"


def _deviation(kind: str, text: str, rank: int | None) -> Deviation:
    return Deviation(verdict=Verdict.WRONG_PATH, kind=kind, text=text, global_rank=rank)
