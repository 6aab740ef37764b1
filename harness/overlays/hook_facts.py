"""Facts of the layout, offered to backend hooks that take them.

What a hook of an earlier release was written for it gets as before; what holds whatever the
context-parallel size comes on top, as keywords that a hook may declare.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from harness.overlays.plan_resolver import CallFacts


def layout_facts(facts: CallFacts) -> dict[str, bool]:
    """Return the facts by the keywords under which hooks take them."""
    return {
        "varlen_is_plain_causal": facts.plain_causal,
        "packed_thd_causal_identity_layout": facts.packed and facts.has_bounds,
        "packed_thd_single_sequence": facts.packed and facts.entries_q == 1,
    }


def with_facts(hook: Callable[..., Any], facts: dict[str, bool]) -> Callable[..., Any]:
    """Return the hook with those facts added to its call that it takes and is not given.

    The signature is asked anew for every call: a new object may have the identity of a dead one.
    """
    taken = {name: value for name, value in facts.items() if _takes(hook, name)}
    if not taken:
        return hook

    @functools.wraps(hook)
    def called(*args: Any, **kwargs: Any) -> Any:
        return hook(*args, **{**taken, **kwargs})

    return called


def _takes(hook: Callable[..., Any], name: str) -> bool:
    """Whether a hook takes a keyword; one whose signature cannot be had takes none."""
    try:
        parameters = inspect.signature(hook).parameters
    except (TypeError, ValueError):
        return False
    named = parameters.get(name)
    if named is not None and named.kind is not inspect.Parameter.POSITIONAL_ONLY:
        return named.kind is not inspect.Parameter.VAR_POSITIONAL
    return any(item.kind is inspect.Parameter.VAR_KEYWORD for item in parameters.values())
