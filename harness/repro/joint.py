"""Changes of several sizes at once, as hypothesis draws and shrinks them around a given case."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import hypothesis
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from harness.repro.reduce_model import with_model
from harness.repro.reductions import cost
from harness.repro.reshape import with_lengths
from harness.scenario.spec import Scenario

JOINT_RUNS = 20
"""Cases that are run at most; all that differ in one size alone have been tried before."""


class _EnoughError(BaseException):
    """Ends the drawing; no ``Exception``, which hypothesis would take for a failing example."""


def smaller_jointly(scenario: Scenario, holds: Callable[[Scenario], bool]) -> Scenario | None:
    """Return a smaller case that holds, None when none was met.

    No size is above that of the given case, so that this is a search below it; what hypothesis
    finds it shrinks.

    Args:
        scenario: The case to start from.
        holds: Runs a case; called ``JOINT_RUNS`` times at most.
    """
    tried: dict[str, bool] = {}
    best: list[Scenario] = []

    def smaller(case: Scenario) -> bool:
        name = case.content_hash
        if name not in tried:
            if cost(case) >= cost(best[-1] if best else scenario):
                return False
            if len(tried) >= JOINT_RUNS:
                raise _EnoughError
            tried[name] = holds(case)
            if tried[name]:
                best.append(case)
        return tried[name]

    settings = hypothesis.settings(
        max_examples=20 * JOINT_RUNS,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.generate, hypothesis.Phase.shrink],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    with contextlib.suppress(NoSuchExample, _EnoughError):
        hypothesis.find(_below(scenario), smaller, settings=settings, random=random.Random(0))  # noqa: S311
    return best[-1] if best else None


@st.composite
def _below(draw: Callable[[st.SearchStrategy[Any]], Any], scenario: Scenario) -> Scenario:
    packs = []
    for pack in scenario.microbatches:
        cp_size = pack.cp or scenario.parallel.context_parallel_size
        if pack.qkv_format == "sbhd":
            packs.append(pack)
            continue
        # An empty pack is another case: some builds refuse it.
        lengths = [draw(st.integers(min(1, most), most)) for most in pack.sequences]
        packs.append(with_lengths(pack, lengths, cp_size))
    changed = replace(scenario, microbatches=tuple(packs))
    topk = draw(st.integers(1, scenario.model.dsa_indexer_topk))
    return with_model(changed, dsa_indexer_topk=topk)
