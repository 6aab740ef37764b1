"""Scenarios and models in the repository: they load, and say what the quick start promises."""

import pytest

from harness.record.verdict import Verdict
from harness.scenario.files import MODELS_DIR, PROJECT_ROOT
from harness.scenario.known import EffectiveBuild, matching_rule
from harness.scenario.loader import load
from harness.scenario.model_files import ModelLibrary
from harness.scenario.verify import verify

QUICKSTART = load([PROJECT_ROOT / "scenarios" / "quickstart"])
SCENARIOS = [loaded.scenario for loaded in QUICKSTART.scenarios]


def test_all_shipped_scenarios_load_without_a_word():
    result = load([PROJECT_ROOT / "scenarios"])
    assert result.problems == ()
    assert result.scenarios


def test_the_quick_start_covers_packs_sizes_and_kernels():
    found = {
        (
            scenario.kernels.dsa_kernel_backend,
            scenario.kernels.modelled.cudnn_frontend,
            scenario.level,
            scenario.parallel.context_parallel_size,
            scenario.microbatches[0].sequences,
        )
        for scenario in SCENARIOS
    }
    packs = [(256,), (128, 64, 64)]
    unfused = {("none", "1.32.0", "attention", cp, pack) for cp in (4, 2) for pack in packs}
    fused = {
        ("cudnn", release, "attention", cp, pack)
        for release in ("1.25.0", "1.32.0")
        for cp in (4, 2)
        for pack in packs
    }
    wide = {
        ("cudnn", release, "scorer", 32, pack)
        for release in ("1.25.0", "1.32.0")
        for pack in [(8192,), (8192, 4096)]
    }
    assert found == unfused | fused | wide
    assert len(SCENARIOS) == len(found)
    assert all(s.values.seeds == (0, 1, 2) and s.expect.verdict is Verdict.PASS for s in SCENARIOS)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.id)
def test_expected_plans_are_those_of_the_layout(scenario):
    (plan,) = verify(scenario).microbatches
    if scenario.kernels.dsa_kernel_backend == "none":
        assert scenario.expect.plan is None
        assert scenario.known == ()
    else:
        single = len(scenario.microbatches[0].sequences) == 1
        assert scenario.expect.plan == plan.plan == ("packed_single" if single else "packed_thd")


@pytest.mark.parametrize(
    ("release", "passes_offsets", "overlays", "is_known"),
    [
        ("1.32.0", False, (), True),
        ("1.25.0", False, (), False),
        ("1.32.0", True, (), False),
        ("1.32.0", True, ("causal_offsets",), False),  # the overlay brings the fact about
        ("1.32.0", False, ("layout_memo",), True),
    ],
)
def test_the_known_defect_is_that_of_top_left_masks_without_offsets(
    release, passes_offsets, overlays, is_known
):
    fused = [s for s in SCENARIOS if s.kernels.dsa_kernel_backend == "cudnn"]
    build = EffectiveBuild(
        facts={"passes_causal_offsets": passes_offsets},
        versions={"cudnn_frontend": release},
        overlays=overlays,
    )
    for scenario in fused:
        rule = matching_rule(scenario.known, build)
        assert (rule is not None) is is_known
        assert rule is None or (rule.verdict, rule.behaviour) == (
            Verdict.WRONG_SELECTION,
            "chunk_local_window",
        )


def test_models_are_readable_and_have_sources():
    library = ModelLibrary(folder=MODELS_DIR)
    assert library.names == ("deepseek_v3_2", "glm5_2", "small")
    small, glm, deepseek = (library.get(n) for n in ("small", "glm5_2", "deepseek_v3_2"))
    assert library.problems == []
    for model in (small, glm, deepseek):
        assert (model.dsa_indexer_head_dim, model.kv_lora_rank, model.qk_pos_emb_head_dim) == (
            128,
            512,
            64,
        )
    assert (small.dsa_indexer_n_heads, small.dsa_indexer_topk) == (32, 16)
    assert (glm.num_layers, glm.hidden_size, glm.dsa_indexer_n_heads, glm.v_head_dim) == (
        78,
        6144,
        32,
        256,
    )
    assert (deepseek.num_layers, deepseek.hidden_size, deepseek.dsa_indexer_n_heads) == (
        61,
        7168,
        64,
    )
    assert glm.dsa_indexer_topk == deepseek.dsa_indexer_topk == 2048
    assert glm.source
    assert deepseek.source


def test_the_shared_layers_of_glm_are_those_of_the_public_schedule():
    """Layers 1, 2, 3, 7, 11, ... 75 compute picks, by Megatron's rule for layer numbers from 1."""
    model = ModelLibrary().get("glm5_2")
    offset = max(model.dsa_indexer_skip_topk_offset, 1)
    computing = [
        layer
        for layer in range(1, model.num_layers + 1)
        if max(layer - offset, 0) % model.dsa_indexer_topk_freq == 0
    ]
    assert computing == [1, 2, *range(3, 76, 4)]


PR14 = load([PROJECT_ROOT / "configs" / "suites" / "pr14.yaml"])


def test_the_pr14_suite_covers_the_published_packs_with_and_without_offsets():
    scenarios = [loaded.scenario for loaded in PR14.scenarios]
    packs = [(8192,), (32768,), (131072,), (8192, 4096), (65536, 65536), (131008, 64)]
    assert {(s.microbatches[0].sequences, s.overlays) for s in scenarios} == {
        (pack, overlays) for pack in packs for overlays in ((), ("causal_offsets",))
    }
    assert len(scenarios) == 12
    for scenario in scenarios:
        model, modelled = scenario.model, scenario.kernels.modelled
        assert (model.dsa_indexer_n_heads, model.dsa_indexer_head_dim) == (32, 128)
        assert model.dsa_indexer_topk == 2048
        assert (modelled.cudnn_frontend, modelled.arch) == ("1.32.0", "sm100")
        assert scenario.parallel.context_parallel_size == 32
        assert scenario.logical_cp_ranks == (0, 15, 31)
        assert (scenario.level, scenario.reference.rows) == ("scorer", 256)
        assert [figure.value.partition(",")[0] for figure in scenario.published] == [
            "0.02 to 0.25",
            "1.0000",
        ]


@pytest.mark.parametrize("loaded", PR14.scenarios, ids=lambda loaded: loaded.scenario.id)
def test_pr14_expects_the_plan_of_the_layout_and_knows_the_missing_offset(loaded):
    scenario = loaded.scenario
    (plan,) = verify(scenario).microbatches
    assert scenario.expect.plan == plan.plan
    for passes in (bool(scenario.overlays), True):
        build = EffectiveBuild(
            facts={"passes_causal_offsets": passes},
            versions={"cudnn_frontend": "1.32.0"},
            overlays=scenario.overlays,
        )
        is_known = not passes and not scenario.overlays
        assert (matching_rule(scenario.known, build) is not None) is is_known
