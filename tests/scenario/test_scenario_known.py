import dataclasses

import pytest

from harness.record.evidence import AddressFaultEvidence, ExceptionEvidence
from harness.record.phase import Phase
from harness.record.result import Attempt, FaultReport, RankOutcome
from harness.record.selection import BehaviourEvidence
from harness.record.verdict import Verdict
from harness.scenario.facts import FACTS
from harness.scenario.known import (
    EffectiveBuild,
    Observed,
    explained_by,
    fact_disagreements,
    facts_missing,
    matching_rule,
    mismatch,
    observe,
    rule_holds,
    satisfies,
)
from harness.scenario.spec import KnownRule

TOP_LEFT = KnownRule(
    when={"cudnn_frontend": ">=1.26", "passes_causal_offsets": False, "overlays": ()},
    verdict=Verdict.WRONG_SELECTION,
    behaviour="chunk_local_window",
    link="https://github.com/NVIDIA/cudnn-frontend/pull/316",
)
BUILD = EffectiveBuild(
    facts={"passes_causal_offsets": False, "mask_alignment": "top_left"},
    versions={"cudnn_frontend": "1.32.0", "megatron_core": "0.19.2"},
    arch="sm100",
    source="modelled",
)


@pytest.mark.parametrize(
    ("changes", "matches"),
    [
        ({}, True),
        ({"versions": {"cudnn_frontend": "1.26.0"}}, True),
        ({"versions": {"cudnn_frontend": "1.25.0"}}, False),
        ({"versions": {"cudnn_frontend": None}}, False),
        ({"versions": {}}, False),
        ({"versions": {"cudnn_frontend": "unknown"}}, False),
        ({"facts": {"passes_causal_offsets": True}}, False),
        ({"facts": {"passes_causal_offsets": None}}, False),
        ({"facts": {}}, False),
        ({"overlays": ("causal_offsets",)}, False),
    ],
)
def test_a_rule_matches_only_the_builds_it_names(changes, matches):
    build = dataclasses.replace(BUILD, **changes)
    assert matching_rule([TOP_LEFT], build) == (TOP_LEFT if matches else None)


@pytest.mark.parametrize(
    ("when", "matches"),
    [
        ({"arch": "sm100", "source": "modelled"}, True),
        ({"arch": "sm90"}, False),
        ({"source": "hardware"}, False),
        ({"mask_alignment": "top_left"}, True),
        ({"mask_alignment": "bottom_right"}, False),
        ({"megatron_core": ">=0.19,<0.20"}, True),
        ({"megatron_core": "<0.19"}, False),
        ({"overlays": ("causal_offsets",)}, False),
    ],
)
def test_each_condition_decides(when, matches):
    rule = dataclasses.replace(TOP_LEFT, when=when)
    assert (matching_rule([rule], BUILD) is rule) is matches


def test_the_first_matching_rule_wins():
    other = dataclasses.replace(TOP_LEFT, when={"arch": "sm90"})
    later = dataclasses.replace(TOP_LEFT, when={"arch": "sm100"}, verdict=Verdict.HANG)
    assert matching_rule([other, TOP_LEFT, later], BUILD) is TOP_LEFT
    assert matching_rule([later, TOP_LEFT], BUILD) is later


def test_overlays_are_compared_as_sets():
    rule = dataclasses.replace(TOP_LEFT, when={"overlays": ("a", "b")})
    assert matching_rule([rule], EffectiveBuild(overlays=("b", "a"))) is rule
    assert matching_rule([rule], EffectiveBuild(overlays=("a",))) is None


def test_pre_releases_count_by_their_order():
    assert satisfies("0.20.0rc0", ">=0.19")
    assert not satisfies("1.26.0rc1", ">=1.26")
    assert satisfies("0.19.2+local.3", "==0.19.2")


def behaviour(**counts: int) -> BehaviourEvidence:
    base = {"rows": 8, "rows_matching": 8, "rows_telling": 4} | counts
    return BehaviourEvidence(
        global_rank=0, cp_rank=0, microbatch=0, layer=0, seed=0, name="chunk_local_window", **base
    )


def test_a_behaviour_explains_only_when_every_row_agrees_and_some_tell():
    assert explained_by([behaviour(), behaviour(rows_telling=0)]) == {"chunk_local_window"}
    assert explained_by([behaviour(), behaviour(rows_matching=7)]) == frozenset()
    assert explained_by([behaviour(rows_telling=0)]) == frozenset()
    assert explained_by([]) == frozenset()


SEEN = Observed(
    verdict=Verdict.MEMORY_FAULT,
    phase="select",
    kernel="indexer_top_k",
    exception="harness.kernels.addresses.AddressFault",
)
FAULT_RULE = KnownRule(
    when={"arch": "sm100"},
    verdict=Verdict.MEMORY_FAULT,
    phase="select",
    kernel="indexer_top_k",
    exception="AddressFault",
)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, None),
        ({"exception": None, "kernel": None, "phase": None}, None),
        ({"exception": "harness.kernels.addresses.AddressFault"}, None),
        ({"verdict": Verdict.HANG}, "the rule says hang, the run showed memory_fault"),
        ({"phase": "score"}, "phase score, the run showed select"),
        ({"kernel": "indexer_forward"}, "kernel indexer_forward"),
        ({"exception": "ValueError"}, "exception ValueError, the run showed AddressFault"),
        ({"exception": "other.AddressFault"}, "exception other.AddressFault"),
        ({"behaviour": "chunk_local_window"}, "not those that chunk_local_window predicts"),
    ],
)
def test_an_outcome_meets_a_rule_in_every_point_it_names(changes, words):
    why = mismatch(dataclasses.replace(FAULT_RULE, **changes), SEEN)
    assert why is None if words is None else words in (why or "")


def test_an_attempt_is_reduced_to_the_first_faulty_rank():
    address = AddressFaultEvidence(
        kernel="indexer_top_k",
        operand="scores",
        row=1,
        index=2,
        element_offset=3,
        allowed=(0, 2),
        klass="past_tensor",
    )

    def rank(number: int, fault: AddressFaultEvidence | None) -> RankOutcome:
        raised = ExceptionEvidence(
            type="pkg.AddressFault" if fault else "RuntimeError",
            text="",
            traceback="",
            origin="build",
            address_fault=fault,
        )
        return RankOutcome(global_rank=number, exception=raised)

    attempt = Attempt(
        number=1,
        verdict=Verdict.MEMORY_FAULT,
        ranks=(rank(0, None), rank(1, address)),
        fault=FaultReport(
            verdict=Verdict.MEMORY_FAULT, global_rank=1, phase=Phase.SELECT, cause="c"
        ),
    )
    assert observe(attempt) == dataclasses.replace(SEEN, exception="pkg.AddressFault")
    assert rule_holds(FAULT_RULE, attempt) == (True, "")
    holds, why = rule_holds(dataclasses.replace(FAULT_RULE, phase="score"), attempt)
    assert not holds
    assert "phase score" in why


def test_facts_that_contradict_the_version_are_told():
    assert fact_disagreements(BUILD.facts, BUILD.versions) == ()
    (text,) = fact_disagreements({"mask_alignment": "bottom_right"}, {"cudnn_frontend": "1.32.0"})
    assert "1.32.0 promises mask_alignment = top_left, the probe found bottom_right" in text
    assert fact_disagreements({"mask_alignment": "top_left"}, {"cudnn_frontend": "1.25.0"})
    assert fact_disagreements({"mask_alignment": "top_left"}, {}) == ()


def test_every_fact_has_values_and_a_meaning():
    for name, fact in FACTS.items():
        assert len(fact.values) == 2, name
        assert fact.doc.endswith("."), name


UNFUSED = KnownRule(
    when={"has_scoring_plan": False},
    verdict=Verdict.WRONG_PATH,
    plan="unfused_bounds",
    deviation="plan",
    link="https://github.com/NVIDIA/Megatron-LM/pull/6206",
)


@pytest.mark.parametrize(
    ("plans", "deviations", "why"),
    [
        ({"unfused_bounds"}, {"plan"}, None),
        ({"decline"}, {"plan"}, "plan unfused_bounds, the run showed decline"),
        ({"unfused_bounds", "packed_thd"}, {"plan"}, "showed packed_thd, unfused_bounds"),
        (set(), {"plan"}, "showed none"),
        ({"unfused_bounds"}, {"plan", "storage"}, "deviation plan, the run showed plan, storage"),
        ({"unfused_bounds"}, {"diagnostics"}, "showed diagnostics"),
    ],
)
def test_a_rule_of_a_path_names_its_plan_and_the_only_kind_of_deviation(plans, deviations, why):
    observed = Observed(
        verdict=Verdict.WRONG_PATH, plans=frozenset(plans), deviations=frozenset(deviations)
    )
    found = mismatch(UNFUSED, observed)
    assert found is None if why is None else why in found


@pytest.mark.parametrize(
    ("deviations", "why"),
    [
        ({"replay", "state"}, None),
        ({"replay"}, "deviations replay, state, the run showed replay"),
        ({"replay", "state", "launch"}, "the run showed launch, replay, state"),
        (set(), "the run showed none"),
    ],
)
def test_a_rule_may_name_several_kinds_of_deviation_and_means_all_of_them(deviations, why):
    rule = KnownRule(
        when={"has_layout_memo": False},
        verdict=Verdict.WRONG_GRADIENT,
        deviations=("replay", "state"),
    )
    seen = Observed(verdict=Verdict.WRONG_GRADIENT, deviations=frozenset(deviations))
    found = mismatch(rule, seen)
    assert found is None if why is None else why in found


@pytest.mark.parametrize(
    ("wrong", "holds"),
    [({"starts", "ends"}, True), ({"starts"}, False), ({"starts", "ends", "key_reorder"}, False)],
)
def test_a_rule_of_tables_names_exactly_those_that_differ(wrong, holds):
    rule = dataclasses.replace(
        UNFUSED,
        verdict=Verdict.OUT_OF_BOUNDS,
        plan=None,
        deviation=None,
        tables=("starts", "ends"),
    )
    observed = Observed(verdict=Verdict.OUT_OF_BOUNDS, wrong_tables=frozenset(wrong))
    assert (mismatch(rule, observed) is None) is holds


REFUSAL = "Packed DSA CP expects lengths divisible by cp_size, got seq_len=610, cp_size=4"


@pytest.mark.parametrize(
    ("facts", "missing"),
    [
        (("seq_len=610", "cp_size=4"), None),
        (("610", "divisible by cp_size"), None),
        (("seq_len=61",), "seq_len=61;"),
        (("q_len=610",), "q_len=610;"),
        (("10", "cp_size=4"), "10;"),
        (("cp_size=4", "seq_len=612", "cp_size=8"), "seq_len=612 and cp_size=8;"),
    ],
)
def test_a_text_has_its_facts_only_where_they_stand_alone(facts, missing):
    found = facts_missing(facts, REFUSAL)
    if missing is None:
        assert found is None
        return
    assert found.startswith(f"the text says {missing}")
    assert REFUSAL in found


@pytest.mark.parametrize(("text", "holds"), [("at 61.5", False), ("at 61.", True), ("v61", False)])
def test_a_number_is_not_found_in_another_one(text, holds):
    assert (facts_missing(["61"], text) is None) is holds


def test_a_rule_holds_only_for_the_text_it_names():
    rule = dataclasses.replace(FAULT_RULE, verdict=Verdict.REFUSED, text_has=("seq_len=610",))
    rule = dataclasses.replace(rule, phase=None, kernel=None, exception="ValueError")
    seen = Observed(verdict=Verdict.REFUSED, exception="ValueError", text=REFUSAL)
    assert mismatch(rule, seen) is None
    why = mismatch(rule, dataclasses.replace(seen, text=REFUSAL.replace("610", "64")))
    assert why.startswith("the rule says that the text says seq_len=610; it says: Packed DSA")
