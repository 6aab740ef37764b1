from harness.kernels.defects import DEFECTS as MODELLED_DEFECTS
from harness.kernels.releases import RELEASES
from harness.layout import Plan
from harness.record.verdict import Verdict
from harness.scenario.names import (
    CUDNN_FRONTEND_RELEASES,
    DEFECTS,
    RENAMED_KEYS,
    did_you_mean,
    nearest,
)
from harness.scenario.sections import Expect


def test_names_of_files_are_those_of_the_models():
    assert set(DEFECTS) == set(MODELLED_DEFECTS)
    assert set(CUDNN_FRONTEND_RELEASES) == set(RELEASES)


def test_plan_and_verdict_names_are_those_of_layout_and_record():
    for plan in Plan:
        assert Expect.model_validate({"plan": str(plan)}).plan == plan
    for verdict in Verdict:
        assert Expect.model_validate({"verdict": str(verdict)}).verdict is verdict


def test_nearest_names():
    assert (
        nearest("context-parallel-size", ["context_parallel_size", "x"]) == "context_parallel_size"
    )
    assert nearest("zzzz", ["context_parallel_size"]) is None
    assert did_you_mean("sequence", ["sequences", "padded"]) == "; did you mean sequences?"
    assert did_you_mean("zzzz", ["sequences"]) == ""
    for old, new in RENAMED_KEYS.items():
        assert nearest(old, [new, "other"]) == new
        assert nearest(old, ["other"]) is None


def test_behaviours_of_rules_are_those_that_can_be_predicted():
    from harness.reference.behaviours import BEHAVIOURS as PREDICTED
    from harness.reference.half_heads import HALF_HEADS
    from harness.scenario.names import BEHAVIOURS

    assert set(BEHAVIOURS) == {*PREDICTED, HALF_HEADS}
