"""Rules over keys that do nothing where they stand: they look like a slip."""

from __future__ import annotations

from collections.abc import Iterator

from harness.scenario.call_spec import ThirdPartyHookSpec
from harness.scenario.rules.finding import Finding, Rule, warn
from harness.scenario.spec import MicrobatchSpec, Scenario


def _hook_signature(scenario: Scenario) -> Iterator[Finding]:
    given = scenario.kernels.third_party_hook
    if given.hook is None and given != ThirdPartyHookSpec():
        yield warn(
            ("kernels", "third_party_hook", "signature"),
            f"signature {given.signature} is ignored without a hook; name one under hook, or "
            "remove third_party_hook",
        )


def _search(scenario: Scenario) -> Iterator[Finding]:
    asked = scenario.search
    if asked.cp is not None and not scenario.parallel.dynamic_context_parallel:
        yield warn(
            ("search", "cp"),
            "cp is ignored without Dynamic CP, where all microbatches have the configured size; "
            "set parallel.dynamic_context_parallel: true, or remove it",
        )
    if asked.all_empty and not asked.zero_lengths:
        yield warn(
            ("search", "all_empty"),
            "all_empty is ignored with zero_lengths: false; set that to true, or remove all_empty",
        )
    if asked.length is not None and asked.tokens is not None and asked.length > asked.tokens:
        yield warn(
            ("search", "length"),
            f"no sequence of {asked.length} fits packs of at most {asked.tokens} tokens, so that "
            f"{asked.tokens} is the longest; lower length, or raise tokens",
        )


def _no_rows(scenario: Scenario) -> Iterator[Finding]:
    packs = scenario.microbatches
    if scenario.level == "kernel" or not all(_is_bare(pack) for pack in packs):
        return
    yield warn(
        ("microbatches",),
        "no microbatch has a row, so that nothing is selected and a pass says nothing of the "
        "selection; add a sequence with tokens, or tail_padding",
    )


def _is_bare(pack: MicrobatchSpec) -> bool:
    """Tell whether a packed microbatch has no row at all."""
    tokens = any(pack.sequences) or any(map(any, pack.beside))
    return pack.qkv_format == "thd" and not tokens and not pack.tail_padding


RULES = (
    Rule(
        needs=("kernels.third_party_hook.hook", "kernels.third_party_hook.signature"),
        check=_hook_signature,
    ),
    Rule(needs=("search", "parallel.dynamic_context_parallel"), check=_search),
    Rule(needs=("microbatches", "level"), check=_no_rows),
)
