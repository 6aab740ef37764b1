"""Keys that do nothing where they stand are warned of; keys that cannot be met are refused."""

import pytest

from harness.scenario.problems import Severity

HEAD = "id: case/rule\nsummary: One rule.\nmodel: small\n"
TRAINED = "training: {backward: true, recompute: selective, recompute_modules: [%s]}\n"


def one(extra: str, pack: str = "sequences: [64]") -> str:
    return f"{HEAD}{extra}microbatches: [{{{pack}}}]\n"


WARNED = [
    (one("kernels: {third_party_hook: {signature: opaque}}\n"), one(""), "ignored without a hook"),
    (
        one("search: {cp: [1, 2]}\n"),
        one("parallel: {dynamic_context_parallel: true}\nsearch: {cp: [1, 2]}\n"),
        "ignored without Dynamic CP",
    ),
    (
        one("search: {all_empty: true, zero_lengths: false}\n"),
        one("search: {all_empty: true}\n"),
        "ignored with zero_lengths: false",
    ),
    (
        one("search: {length: 50, tokens: 10}\n"),
        one("search: {length: 10, tokens: 10}\n"),
        "no sequence of 50 fits packs of at most 10 tokens",
    ),
    (one("", "sequences: [0, 0]"), one("", "sequences: [0, 1]"), "no microbatch has a row"),
    (
        one("", "sequences: [0]"),
        one("", "sequences: [0], tail_padding: 2"),
        "no microbatch has a row",
    ),
]
REFUSED = [
    (
        one("values: {strided: true}\nparallel: {dynamic_context_parallel: true}\n"),
        one("values: {strided: true}\n"),
        "which always makes contiguous queries",
    ),
    (
        one("values: {strided: true}\n" + TRAINED % "core_attn"),
        one(TRAINED % "core_attn"),
        "which always makes contiguous queries",
    ),
    (
        one(TRAINED % "mlp"),
        one(TRAINED % "core_attn, mlp"),
        "has core attention alone to compute again, found mlp",
    ),
    (
        one("level: scorer\ncompare: {launches: [again, interrupted]}\n"),
        one("level: scorer\ncompare: {launches: [again]}\n"),
        "no attention that an exception could end",
    ),
]


@pytest.mark.parametrize(("odd", "healthy", "words"), WARNED)
def test_what_is_ignored_is_warned_of(load_text, odd, healthy, words):
    result = load_text(odd)
    (problem,) = result.problems
    assert words in problem.message
    assert problem.severity is Severity.WARNING and result.ok
    assert load_text(healthy).problems == ()


@pytest.mark.parametrize(("broken", "healthy", "words"), REFUSED)
def test_what_cannot_be_met_is_refused(load_text, broken, healthy, words):
    result = load_text(broken)
    (problem,) = result.problems
    assert words in problem.message
    assert not result.ok
    assert load_text(healthy).problems == ()
