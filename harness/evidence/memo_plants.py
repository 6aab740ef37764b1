"""Planted faults of path reports and layout memo, for builds that have one."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from harness.evidence.memo import watch_memo
from harness.production.recorder import HookCall, Recorder

MEMO_PLANTS = ("stale_memo", "double_build", "second_diagnostic")
"""Kinds of this module."""

_SAYS = "megatron.core.transformer.experimental_attention_variant.dsa_scoring_plan"


def plant_memo(recorder: Recorder, kinds: tuple[str, ...]) -> None:
    """Arrange for the faults to happen in the next forward.

    Args:
        recorder: Whose dressers and transforms carry the faults.
        kinds: ``stale_memo`` (one memo serves every microbatch), ``double_build`` (nothing is
            kept), ``second_diagnostic`` (every forward warns of its path anew).
    """
    watch_memo(recorder)
    if "stale_memo" in kinds:
        _dress_cache(recorder, lambda cache: recorder.planted.setdefault("memo", cache))
    if "double_build" in kinds:
        _dress_cache(recorder, lambda _cache: None)
    if "second_diagnostic" in kinds:
        recorder.transforms["use_fused"] = _warn


def _dress_cache(recorder: Recorder, change: Callable[[Any], Any]) -> None:
    watching = recorder.dressers["memo"]

    def dress(name: str, value: Any) -> Any:
        return change(value) if name == "cache" else watching(name, value)

    recorder.dressers["memo"] = dress


def _warn(_call: HookCall, result: Any) -> Any:
    logging.getLogger(_SAYS).warning("planted: the unfused scorer is in use")
    return result
