"""Rules over what backward computes again."""

from __future__ import annotations

from collections.abc import Iterator

from harness.scenario.rules.finding import Finding, Rule, warn
from harness.scenario.spec import Scenario, TrainingSpec

_PLAIN = TrainingSpec()
_OF = {
    "recompute_modules": "selective",
    "recompute_method": "full",
    "recompute_num_layers": "full",
}
"""Key to the granularity that reads it."""


def _recompute(scenario: Scenario) -> Iterator[Finding]:
    training = scenario.training
    path = ("training", "recompute")
    if training.recompute != "none":
        if scenario.level in ("scorer", "kernel"):
            yield Finding(
                path=path,
                message=f"level {scenario.level} has no backward of a layer; use level: model, or "
                "remove it",
            )
        elif not training.backward:
            yield Finding(
                path=path,
                message=f"{training.recompute} recomputation happens in backward; set "
                "training.backward: true, or remove it",
            )
    if training.recompute == "selective" and not training.recompute_modules:
        yield Finding(
            path=("training", "recompute_modules"),
            message="selective recomputation of nothing is none; name a module, or use "
            "recompute: none",
        )
    elif (
        training.recompute == "selective"
        and scenario.level == "attention"
        and "core_attn" not in training.recompute_modules
    ):
        yield Finding(
            path=("training", "recompute_modules"),
            message="level attention has core attention alone to compute again, found "
            f"{', '.join(training.recompute_modules)}; add core_attn, or use level: model",
        )
    for key, granularity in _OF.items():
        given = getattr(training, key) != getattr(_PLAIN, key)
        if given and training.recompute != granularity:
            yield warn(
                ("training", key),
                f"{key} is read with recompute: {granularity} only, found {training.recompute}; "
                "it is ignored",
            )


def _layers(scenario: Scenario) -> Iterator[Finding]:
    asked, found = scenario.training.recompute_num_layers, scenario.model.num_layers
    if scenario.training.recompute == "full" and asked > found:
        yield Finding(
            path=("training", "recompute_num_layers"),
            message=f"expected at most model.num_layers = {found}, found {asked}; lower it",
        )


RULES = (
    Rule(needs=("level", "training"), check=_recompute),
    Rule(needs=("model.num_layers", "training"), check=_layers),
)
