"""Which optional collectors run: asked for, by default, or because an expectation needs them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.scenario.collectors import COLLECTORS, CollectorError, chosen, parse_collectors
from harness.scenario.spec import (
    CompareSpec,
    ExpectSpec,
    GraphSpec,
    MicrobatchSpec,
    ModelSpec,
    Scenario,
)

PLAIN = Scenario(
    id="t",
    summary="",
    model=ModelSpec(name="small"),
    microbatches=(MicrobatchSpec(sequences=(8,)),),
)
DEFAULT = tuple(name for name, collector in COLLECTORS.items() if collector.default)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("all", tuple(COLLECTORS)),
        ("none", ()),
        ("default", DEFAULT),
        ("transfers,state", ("state", "transfers")),
        ("default, copies", (*DEFAULT, "copies")),
    ],
)
def test_what_was_asked_for_runs_in_order(text, names):
    assert chosen(parse_collectors(text), PLAIN) == names


def test_nothing_asked_is_the_default():
    assert chosen((), PLAIN) == DEFAULT
    assert "transfers" not in DEFAULT


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"expect": ExpectSpec(host_reads_per_layer=0)}, "transfers"),
        ({"expect": ExpectSpec(graph_warnings=0)}, "graphs"),
        ({"expect": ExpectSpec(layout_builds_per_microbatch=1)}, "memo"),
        ({"graph": GraphSpec(cuda_graph_impl="local")}, "graphs"),
        ({"compare": CompareSpec(launches=("again",))}, "invariance"),
    ],
)
def test_what_an_expectation_needs_runs_even_with_none(changes, name):
    assert chosen(("none",), replace(PLAIN, **changes)) == (name,)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("transfer", "no kind 'transfer'; use memo"),
        ("all,state", "stand alone"),
        ("", "expected KIND"),
        (" , ", "expected KIND"),
    ],
)
def test_what_cannot_be_read_says_what_there_is(text, said):
    with pytest.raises(CollectorError, match=said):
        parse_collectors(text)
