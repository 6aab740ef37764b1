"""The scoring plan from layout facts: the contract, and what the release does instead."""

from typing import Any, get_args

import pytest

from harness.layout import LossMode, Pack, Plan, expected_plan, pack_sequences, released_plan_0192
from harness.scenario.spec import PlanName


def make(*lengths: int, cp_size: int, **options: Any) -> Pack:
    return pack_sequences(lengths, cp_size=cp_size, **options)


def test_plan_names_are_the_canonical_ones() -> None:
    assert {plan.value for plan in Plan} == set(get_args(PlanName))


PACKS = [
    pytest.param(make(64, cp_size=4), Plan.PACKED_SINGLE, "one packed sequence", id="one"),
    pytest.param(make(61, cp_size=4), Plan.PACKED_SINGLE, "cp_size 4", id="one, padded"),
    pytest.param(make(32, 32, cp_size=4), Plan.PACKED_THD, "2 packed sequences", id="two"),
    pytest.param(make(0, 64, cp_size=4), Plan.PACKED_THD, "(1 empty)", id="empty in front"),
    pytest.param(make(64, 0, 0, cp_size=4), Plan.PACKED_THD, "(2 empty)", id="empties behind"),
    pytest.param(make(64, cp_size=4, tail_padding=8), Plan.PACKED_THD, "8 tail rows", id="tail"),
    pytest.param(
        make(64, cp_size=2, tail_padding=2), Plan.PACKED_THD, "2 tail rows", id="odd local rows"
    ),
    pytest.param(
        make(64, cp_size=4, kv_sequences=[32]), Plan.PACKED_THD, "(32,)", id="other key boundaries"
    ),
    pytest.param(make(64, cp_size=1), Plan.PACKED_THD, "cp_size 1", id="one at cp 1"),
    pytest.param(make(33, 32, cp_size=1), Plan.PACKED_THD, "2 packed", id="two at cp 1"),
    pytest.param(make(0, cp_size=4), Plan.PACKED_THD, "all 1 sequences are empty", id="empty"),
    pytest.param(make(0, 0, cp_size=4, tail_padding=8), Plan.PACKED_THD, "all 2", id="all empty"),
    pytest.param(make(0, cp_size=1), Plan.PACKED_THD, "all 1", id="empty at cp 1"),
]


@pytest.mark.parametrize("loss", ["off", "sparse"])
@pytest.mark.parametrize(("pack", "plan", "reason"), PACKS)
def test_expected_plan_of_packs(pack: Pack, plan: Plan, reason: str, loss: LossMode) -> None:
    decision = expected_plan(qkv_format="thd", cp_size=pack.cp_size, pack=pack, loss=loss)
    assert decision.plan is plan
    assert reason in decision.reason


@pytest.mark.parametrize(("pack", "plan", "reason"), PACKS)
def test_dense_loss_and_explicit_keys_outrank_the_pack(pack: Pack, plan: Plan, reason: str) -> None:
    facts: dict[str, Any] = {"qkv_format": "thd", "cp_size": pack.cp_size, "pack": pack}
    dense = expected_plan(**facts, loss="dense")
    assert dense.plan is Plan.UNFUSED_BOUNDS
    assert "dense indexer loss" in dense.reason
    for loss in get_args(LossMode):
        explicit = expected_plan(**facts, key_positions="explicit", loss=loss)
        assert explicit.plan is Plan.DECLINE
        assert "explicit key positions" in explicit.reason


@pytest.mark.parametrize("loss", ["off", "sparse", "dense"])
def test_expected_plan_without_packing(loss: LossMode) -> None:
    plain = expected_plan(qkv_format="sbhd", cp_size=1, loss=loss)
    assert plain.plan is Plan.PLAIN_CAUSAL
    split = expected_plan(qkv_format="sbhd", cp_size=4, loss=loss)
    assert split.plan is Plan.UNFUSED_BOUNDS
    assert "cp_size 4" in split.reason
    explicit = expected_plan(qkv_format="sbhd", cp_size=1, loss=loss, key_positions="explicit")
    assert explicit.plan is Plan.DECLINE


def test_cardinality_and_cp_are_independent_axes() -> None:
    plans = {
        (num, cp_size): expected_plan(
            qkv_format="thd", cp_size=cp_size, pack=make(*[64] * num, cp_size=cp_size)
        ).plan
        for num in (1, 2, 5)
        for cp_size in (1, 2, 32)
    }
    assert [key for key, plan in plans.items() if plan is Plan.PACKED_SINGLE] == [(1, 2), (1, 32)]
    assert all(plan in (Plan.PACKED_SINGLE, Plan.PACKED_THD) for plan in plans.values())


RELEASED = [
    pytest.param(make(64, cp_size=4), Plan.PACKED_SINGLE, id="one"),
    pytest.param(make(64, cp_size=4, tail_padding=8), Plan.PACKED_SINGLE, id="tail"),
    pytest.param(make(64, cp_size=4, kv_sequences=[32]), Plan.PACKED_SINGLE, id="other keys"),
    pytest.param(make(0, cp_size=4), Plan.PACKED_SINGLE, id="empty"),
    pytest.param(make(32, 32, cp_size=4), Plan.PACKED_THD, id="two"),
    pytest.param(make(0, 64, cp_size=4), Plan.PACKED_THD, id="empty in front"),
    pytest.param(make(64, cp_size=1), Plan.UNFUSED_BOUNDS, id="one at cp 1"),
    pytest.param(make(33, 32, cp_size=1), Plan.UNFUSED_BOUNDS, id="two at cp 1"),
]


@pytest.mark.parametrize("split_hooks", [False, True])
@pytest.mark.parametrize(("pack", "plan"), RELEASED)
def test_released_plan_of_packs(pack: Pack, plan: Plan, split_hooks: bool) -> None:
    facts: dict[str, Any] = {
        "qkv_format": "thd",
        "cp_size": pack.cp_size,
        "pack": pack,
        "split_hooks": split_hooks,
    }
    assert released_plan_0192(**facts).plan is plan
    assert released_plan_0192(**facts, loss="sparse").plan is plan
    assert released_plan_0192(**facts, loss="dense").plan is Plan.DECLINE
    assert released_plan_0192(**facts, key_positions="explicit").plan is Plan.DECLINE


@pytest.mark.parametrize(
    ("cp_size", "loss", "split_hooks", "plan"),
    [
        (1, "off", False, Plan.PLAIN_CAUSAL),
        (1, "dense", False, Plan.PLAIN_CAUSAL),
        (1, "off", True, Plan.UNFUSED_BOUNDS),
        (1, "dense", True, Plan.DECLINE),
        (4, "sparse", False, Plan.UNFUSED_BOUNDS),
        (4, "off", True, Plan.UNFUSED_BOUNDS),
        (4, "dense", False, Plan.DECLINE),
    ],
)
def test_released_plan_without_packing(
    cp_size: int, loss: LossMode, split_hooks: bool, plan: Plan
) -> None:
    decision = released_plan_0192(
        qkv_format="sbhd", cp_size=cp_size, loss=loss, split_hooks=split_hooks
    )
    assert decision.plan is plan
    assert decision.reason
