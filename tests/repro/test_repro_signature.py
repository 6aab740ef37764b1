"""Signatures: what makes two faults the same one."""

from repro_fakes import crashed, passed, result, scenario

from harness.record.codec import dumps, loads
from harness.record.evidence import AddressFaultEvidence, ExceptionEvidence, ValueEvidence
from harness.record.phase import Phase
from harness.record.result import Attempt, FaultReport, RankOutcome
from harness.record.selection import BehaviourEvidence, OverlapStats, SelectionEvidence
from harness.record.verdict import Verdict
from harness.repro.signature import UNEXPLAINED, Signature, attempt_signature, signature_of

SITE = {"global_rank": 0, "cp_rank": 0, "microbatch": 0, "layer": 1, "seed": 0}


def wrong_picks(*behaviours):
    stats = OverlapStats(rows=4, due=4, exact=2, below=2)
    selection = SelectionEvidence(
        **SITE, stage="final", topk=1, reference_dtype="fp32", total=stats
    )
    return Attempt(
        number=1,
        verdict=Verdict.WRONG_SELECTION,
        selections=(selection,),
        behaviours=tuple(
            BehaviourEvidence(**SITE, name=name, rows=4, rows_matching=matching, rows_telling=2)
            for name, matching in behaviours
        ),
    )


def faulted(*, klass="past_tensor", kernel="top_k", signal=None):
    address = AddressFaultEvidence(
        kernel=kernel,
        operand="keys",
        row=0,
        index=9,
        element_offset=9,
        allowed=(0, 8),
        klass=klass,
    )
    raised = ExceptionEvidence(
        type="AddressFault", text="", traceback="", origin="build", address_fault=address
    )
    report = FaultReport(
        verdict=Verdict.MEMORY_FAULT, global_rank=1, phase=Phase.SELECT, cause="planted"
    )
    ranks = (
        RankOutcome(global_rank=0, ended_by_harness=True),
        RankOutcome(global_rank=1, exception=None if signal else raised, signal=signal),
    )
    return Attempt(number=1, verdict=Verdict.MEMORY_FAULT, ranks=ranks, fault=report)


def test_an_address_fault_names_kernel_phase_and_class():
    found = attempt_signature(faulted())
    assert found == Signature(
        verdict=Verdict.MEMORY_FAULT,
        kernel="top_k",
        phase="select",
        exception="AddressFault",
        address_class="past_tensor",
    )
    assert found.matches(attempt_signature(faulted()))
    assert not found.matches(attempt_signature(faulted(klass="wrong_row")))
    assert not found.matches(attempt_signature(faulted(kernel="indexer_forward")))
    assert str(found) == "memory_fault (in top_k, phase select, past_tensor)"


def test_a_signal_is_told_from_an_exception():
    found = attempt_signature(faulted(signal=11))
    assert found.exception == "SIGSEGV"
    assert not found.matches(attempt_signature(faulted()))


def test_wrong_picks_are_told_apart_by_the_behaviour_that_explains_them():
    explained = attempt_signature(wrong_picks(("chunk_local_window", 4), ("half_heads", 3)))
    assert explained.behaviour == "chunk_local_window"
    unexplained = attempt_signature(wrong_picks(("chunk_local_window", 3)))
    assert unexplained.behaviour == UNEXPLAINED
    assert not explained.matches(unexplained) and not unexplained.matches(explained)


def test_of_wrong_values_one_in_common_is_enough():
    def wrong(*names):
        values = tuple(
            ValueEvidence(
                **SITE,
                name=name,
                gradient=False,
                max_abs_diff=1.0,
                max_rel_diff=1.0,
                tolerance_abs=0.1,
                tolerance_rel=0.1,
                within=False,
                reason="",
            )
            for name in names
        )
        return attempt_signature(Attempt(number=1, verdict=Verdict.WRONG_VALUE, values=values))

    both = wrong("attention_output", "token_loss")
    assert both.matches(wrong("token_loss")) and wrong("token_loss").matches(both)
    assert not both.matches(wrong("lm_loss"))


def test_what_is_left_open_may_be_anything():
    assert Signature(verdict=Verdict.MEMORY_FAULT).matches(attempt_signature(faulted()))
    assert not attempt_signature(faulted()).matches(Signature(verdict=Verdict.MEMORY_FAULT))


def test_json_and_back():
    for attempt in (passed(), crashed(), faulted(), wrong_picks()):
        found = signature_of(result(scenario(), attempt))
        assert loads(Signature, dumps(found)) == found
