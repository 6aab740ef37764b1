"""Rules over the order of steps and over what a scenario expects."""

from __future__ import annotations

from collections.abc import Iterator

from harness.layout import LayoutError, PlanDecision, expected_plan
from harness.layout.plan import LossMode
from harness.record.verdict import Verdict
from harness.scenario.problems import NodePath
from harness.scenario.rules.finding import Finding, Rule, effective_cp, warn
from harness.scenario.rules.lengths import build_pack
from harness.scenario.spec import MicrobatchSpec, Scenario


def _schedule(scenario: Scenario) -> Iterator[Finding]:
    if scenario.schedule is None:
        return
    count = len(scenario.microbatches)
    seen: set[str] = set()
    for place, step in enumerate(scenario.schedule):
        path = ("schedule", place)
        kind, index = step[0], int(step[1:])
        if index >= count:
            yield Finding(
                path=path,
                message=f"{step} names microbatch {index}, but there are {count} (0 to "
                f"{count - 1}); change the step or add a microbatch",
            )
        elif step in seen:
            yield Finding(path=path, message=f"{step} is given twice; each step runs once")
        elif kind == "B" and not scenario.training.backward:
            yield Finding(
                path=path, message=f"{step} needs training.backward: true; set it or remove {step}"
            )
        elif kind == "B" and scenario.microbatches[index].forward_only:
            yield Finding(
                path=path,
                message=f"{step}: microbatch {index} is forward_only and has no backward; remove "
                "the step, or forward_only",
            )
        elif kind == "B" and f"F{index}" not in seen:
            yield Finding(path=path, message=f"{step} stands before F{index}; move it behind")
        seen.add(step)
    kinds = "FB" if scenario.training.backward else "F"
    due = [
        f"{kind}{index}"
        for kind in kinds
        for index in range(count)
        if kind == "F" or not scenario.microbatches[index].forward_only
    ]
    if missing := [step for step in due if step not in seen]:
        yield Finding(
            path=("schedule",),
            message=f"{', '.join(missing[:6])} missing: {count} microbatches need {len(due)} "
            f"steps, found {len(scenario.schedule)}; add them, or schedule: null for all in order",
        )


def loss_mode(scenario: Scenario) -> LossMode:
    """Indexer loss of a training forward."""
    if scenario.training.dsa_indexer_loss_coeff == 0:
        return "off"
    return "sparse" if scenario.training.dsa_indexer_use_sparse_loss else "dense"


def right_plan(scenario: Scenario, microbatch: MicrobatchSpec) -> PlanDecision:
    """Return the plan that a right build takes for a microbatch, with the reason.

    Raises:
        LayoutError: the lengths break a rule of ``harness.layout``.
    """
    cp_size = effective_cp(scenario, microbatch)
    return expected_plan(
        qkv_format=microbatch.qkv_format,
        cp_size=cp_size,
        pack=build_pack(microbatch, cp_size) if microbatch.qkv_format == "thd" else None,
        key_positions=microbatch.key_positions,
        loss="off" if microbatch.forward_only else loss_mode(scenario),
    )


def _plan(scenario: Scenario) -> Iterator[Finding]:
    if scenario.expect.plan is None or scenario.perturb.fact is not None:
        # A call broken on purpose has no plan that its layout calls for.
        return
    for index, microbatch in enumerate(scenario.microbatches):
        try:
            decision = right_plan(scenario, microbatch)
        except LayoutError:
            # Reported where the lengths are checked.
            continue
        if scenario.expect.plan != decision.plan:
            yield warn(
                ("expect", "plan"),
                f"expect.plan is {scenario.expect.plan}, but microbatches[{index}] calls for "
                f"{decision.plan}: {decision.reason}",
            )


_SAYS_NOTHING = (Verdict.INFRASTRUCTURE, Verdict.HARNESS_ERROR, Verdict.NOT_RUN)


def _verdict(scenario: Scenario) -> Iterator[Finding]:
    if scenario.expect.verdict in _SAYS_NOTHING:
        yield Finding(
            path=("expect", "verdict"),
            message=f"{scenario.expect.verdict} says nothing about a build and cannot be expected",
        )


_ENDED = (
    *(Verdict.REFUSED, Verdict.CRASH, Verdict.MEMORY_FAULT, Verdict.OUT_OF_MEMORY),
    *(Verdict.COMPILE_FAILED, Verdict.CAPTURE_FAILED),
)
"""Verdicts of runs that an exception may have ended."""


def _exception(scenario: Scenario) -> Iterator[Finding]:
    expect = scenario.expect
    said: dict[NodePath, tuple[Verdict, dict[str, bool]]] = {
        ("expect",): (
            expect.verdict,
            {"exception": expect.exception is not None, "text_has": bool(expect.text_has)},
        )
    }
    for index, rule in enumerate(scenario.known):
        said["known", index] = (rule.verdict, {"text_has": bool(rule.text_has)})
    for path, (verdict, keys) in said.items():
        for key, given in keys.items():
            if given and verdict not in _ENDED:
                yield Finding(
                    path=(*path, key),
                    message=f"{key} is about an exception, which verdict {verdict} has none of; "
                    "remove it, or change the verdict, such as to refused",
                )


def _known(scenario: Scenario) -> Iterator[Finding]:
    for index, rule in enumerate(scenario.known):
        path = ("known", index)
        if not rule.when:
            yield Finding(
                path=(*path, "when"),
                message="an empty when is about every build; name the facts or versions",
            )
        if rule.verdict in _SAYS_NOTHING or rule.verdict is Verdict.PASS:
            yield Finding(
                path=(*path, "verdict"),
                message=f"{rule.verdict} is no defect of a build; name the verdict it causes",
            )
        predicted = scenario.level != "kernel" and not scenario.inject
        if rule.verdict is Verdict.WRONG_SELECTION and rule.behaviour is None and predicted:
            yield Finding(
                path=(*path, "as"),
                message="wrong_selection needs as: the behaviour whose picks are to be matched",
            )
        if rule.values and rule.verdict not in (Verdict.WRONG_VALUE, Verdict.WRONG_GRADIENT):
            yield Finding(
                path=(*path, "values"),
                message=f"values names values that are wrong, found verdict {rule.verdict}; remove "
                "it, or use wrong_value or wrong_gradient",
            )


def _known_against_expect(scenario: Scenario) -> Iterator[Finding]:
    for index, rule in enumerate(scenario.known):
        if rule.verdict is scenario.expect.verdict and rule.verdict is not Verdict.PASS:
            yield Finding(
                path=("known", index, "verdict"),
                message=f"{rule.verdict} is what expect.verdict says as well; change one of them",
            )


def _planted(scenario: Scenario) -> Iterator[Finding]:
    """A planted fault that nobody looks for would make the scenario a plain failure."""
    for index, text in enumerate(scenario.inject):
        path = ("inject", index)
        rank = int(text.partition("@")[2].partition(":")[0])
        if scenario.level != "scorer" and rank >= scenario.num_ranks:
            yield Finding(
                path=path,
                message=f"rank {rank} is outside the scenario's {scenario.num_ranks} ranks; use 0 "
                f"to {scenario.num_ranks - 1}",
            )
        if not scenario.known and scenario.expect.verdict is Verdict.PASS:
            yield Finding(
                path=path,
                message="a planted fault needs a known rule that says what it shows, or another "
                "expect.verdict; add one",
            )


def _sparse_loss(scenario: Scenario) -> Iterator[Finding]:
    training = scenario.training
    if training.dsa_indexer_use_sparse_loss and training.dsa_indexer_loss_coeff == 0:
        yield warn(
            ("training", "dsa_indexer_use_sparse_loss"),
            "dsa_indexer_use_sparse_loss is ignored at dsa_indexer_loss_coeff 0; raise it or "
            "remove the key",
        )


def _layout_builds(scenario: Scenario) -> Iterator[Finding]:
    if scenario.expect.layout_builds_per_microbatch is None or scenario.level != "scorer":
        return
    yield Finding(
        path=("expect", "layout_builds_per_microbatch"),
        message="layout_builds_per_microbatch counts what layers ask for, but at level scorer the "
        "harness asks itself; remove it, or use level: attention or model",
    )


RULES = (
    Rule(needs=("level", "expect.layout_builds_per_microbatch"), check=_layout_builds),
    Rule(needs=("schedule", "microbatches", "training.backward"), check=_schedule),
    Rule(
        needs=(
            "expect.plan",
            "microbatches",
            "parallel.context_parallel_size",
            "training.dsa_indexer_loss_coeff",
            "training.dsa_indexer_use_sparse_loss",
        ),
        check=_plan,
    ),
    Rule(needs=("expect.verdict",), check=_verdict),
    Rule(
        needs=("expect.verdict", "expect.exception", "expect.text_has", "known"), check=_exception
    ),
    Rule(needs=("known", "inject"), check=_known),
    Rule(needs=("inject", "known", "expect.verdict", "level", "parallel"), check=_planted),
    Rule(needs=("known", "expect.verdict"), check=_known_against_expect),
    Rule(
        needs=("training.dsa_indexer_loss_coeff", "training.dsa_indexer_use_sparse_loss"),
        check=_sparse_loss,
    ),
)
