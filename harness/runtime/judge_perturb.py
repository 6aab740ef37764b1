"""What a call broken on purpose makes of an attempt: the build's refusal, or another's.

``refused`` means that the build turned the call down before any kernel was called. A call that came
as far as a kernel, or as far as torch, and was thrown out there, is a ``crash``: nobody who called
it had looked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from harness.record.deviation import Deviation
from harness.record.perturb import PerturbEvidence
from harness.record.phase import Phase
from harness.record.result import FactValue, FaultReport, RankOutcome
from harness.record.verdict import Verdict
from harness.runtime.journal import JournalContent
from harness.scenario.spec import Scenario

_FACT_OF = {"missing_starts": "missing_bounds", "missing_ends": "missing_bounds"}


def refusal_fact(perturbation: str) -> str:
    """Name of the probed fact that a build refuses such a call, such as ``refuses_device``."""
    return f"refuses_{_FACT_OF.get(perturbation, perturbation)}"


def wanted_verdict(scenario: Scenario, facts: Mapping[str, FactValue]) -> Verdict:
    """Return the verdict to expect: a build that checks the broken fact is to refuse the call."""
    fact = scenario.perturb.fact
    if fact is not None and facts.get(refusal_fact(fact)) is True:
        return Verdict.REFUSED
    return scenario.expect.verdict


def perturbed_fault(
    scenario: Scenario,
    fault: FaultReport | None,
    ranks: Sequence[RankOutcome],
    journals: Sequence[JournalContent],
) -> FaultReport | None:
    """Return the fault as it counts for a scenario with a broken call.

    Args:
        scenario: With or without ``perturb``.
        fault: The first fault, None when all ranks completed.
        ranks: How each rank ended.
        journals: One for each rank.
    """
    if fault is None or scenario.perturb.fact is None:
        return fault
    struck = [
        item
        for journal in journals
        for item in journal.of(PerturbEvidence)
        if item.global_rank == fault.global_rank
    ]
    kernels = dict.fromkeys(symbol for item in struck for symbol in item.kernels)
    if fault.verdict is Verdict.REFUSED and kernels:
        text = f"{fault.cause}; kernels were called before: {', '.join(kernels)}"
        return replace(fault, verdict=Verdict.CRASH, cause=text)
    if fault.verdict is Verdict.HARNESS_ERROR and _torch_refused(fault, ranks, struck):
        return replace(fault, verdict=Verdict.CRASH)
    return fault


def _torch_refused(
    fault: FaultReport, ranks: Sequence[RankOutcome], struck: Sequence[PerturbEvidence]
) -> bool:
    """Whether torch's autograd threw a backward's result out: no frame of the build is left."""
    if fault.phase is not Phase.BACKWARD or not any(i.fact == "gradient_arity" for i in struck):
        return False
    return any(
        rank.exception is not None and rank.exception.type == "RuntimeError"
        for rank in ranks
        if rank.global_rank == fault.global_rank
    )


def perturb_deviations(
    scenario: Scenario, journals: Sequence[JournalContent]
) -> tuple[Deviation, ...]:
    """Name the ranks whose call should have been broken and never was."""
    fact = scenario.perturb.fact
    if fact is None:
        return ()
    return tuple(
        Deviation(
            verdict=Verdict.WRONG_PATH,
            kind="unproved",
            text=f"perturbation {fact} found no call to break: the dispatcher was not asked",
            global_rank=rank,
        )
        for rank in _spared(scenario, journals)
    )


def _spared(scenario: Scenario, journals: Sequence[JournalContent]) -> Iterator[int]:
    wanted = scenario.perturb.ranks
    tp_size = scenario.parallel.tensor_model_parallel_size
    for journal in journals:
        cp_rank = journal.global_rank // tp_size
        aimed = wanted == "all" or cp_rank in wanted
        if aimed and not journal.of(PerturbEvidence):
            yield journal.global_rank
