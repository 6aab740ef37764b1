"""What the writer writes loads as the same scenario, and reads as one written by hand."""

import re
from dataclasses import replace

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_scenario_roundtrip import lines, scenarios

from harness.scenario import spec
from harness.scenario.dump import MAX_ID, plain_id
from harness.scenario.files import PROJECT_ROOT
from harness.scenario.loader import load
from harness.scenario.model_files import ModelLibrary
from harness.scenario.schema import ScenarioFile
from harness.scenario.search_spec import SearchSpec
from harness.scenario.writing import WIDTH, scenario_to_yaml


def kept(load_text, scenario, **options):
    result = load_text(scenario_to_yaml(scenario, **options))
    assert result.ok, result.problems
    (loaded,) = result.scenarios
    return loaded.scenario


@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(scenario=scenarios(), comments=st.lists(lines, max_size=2), inline=st.booleans())
def test_any_scenario_and_back(load_text, scenario, comments, inline):
    again = kept(load_text, scenario, comments=comments, inline_model=inline)
    assert again == scenario
    assert again.content_hash == scenario.content_hash


@pytest.mark.parametrize("folder", sorted(p.name for p in (PROJECT_ROOT / "scenarios").iterdir()))
def test_every_shipped_scenario_and_back(tmp_path, folder):
    shipped = load([PROJECT_ROOT / "scenarios" / folder]).scenarios
    assert shipped
    for number, loaded in enumerate(shipped):
        path = tmp_path / f"{number}.yaml"
        path.write_text(scenario_to_yaml(loaded.scenario), encoding="utf-8")
    again = {one.scenario.id: one.scenario for one in load([tmp_path]).scenarios}
    for loaded in shipped:
        plain = plain_id(loaded.scenario.id)
        assert again[plain] == replace(loaded.scenario, id=plain)


def minimal(**changes):
    given = {
        "id": "case/minimal",
        "summary": "One pack.",
        "model": ModelLibrary().get("small"),
        "microbatches": (spec.MicrobatchSpec(sequences=(8, 4)),),
    }
    return spec.Scenario(**{**given, **changes})


def test_a_plain_case_as_a_person_writes_it():
    scenario = minimal(
        tags=("made",),
        kernels=spec.KernelsSpec(
            dsa_kernel_backend="cudnn", modelled=spec.ModelledKernels(cudnn_frontend="1.26.0")
        ),
        parallel=spec.ParallelSpec(context_parallel_size=2, dynamic_context_parallel=True),
        microbatches=(
            spec.MicrobatchSpec(sequences=(8, 4)),
            spec.MicrobatchSpec(sequences=(8,), cp=1),
        ),
    )
    assert scenario_to_yaml(scenario, comments=["made by a test", "two\nlines"]) == (
        "# made by a test\n"
        "# two\n"
        "# lines\n"
        "id: case/minimal\n"
        "summary: One pack.\n"
        "tags: [made]\n"
        "model: small\n"
        'kernels: {dsa_kernel_backend: cudnn, modelled: {cudnn_frontend: "1.26.0"}}\n'
        "parallel: {context_parallel_size: 2, dynamic_context_parallel: true}\n"
        "microbatches:\n"
        "  - sequences: [8, 4]\n"
        "  - {sequences: [8], cp: 1}\n"
    )


def test_a_changed_model_names_its_base():
    small = ModelLibrary().get("small")
    text = scenario_to_yaml(minimal(model=replace(small, name="small+", dsa_indexer_topk=4)))
    assert "model: {base: small, dsa_indexer_topk: 4}\n" in text
    text = scenario_to_yaml(minimal(model=replace(small, name="other", dsa_indexer_topk=4)))
    assert "model: {name: other, " in text or "model:\n  name: other\n" in text


@pytest.mark.parametrize(
    "summary",
    [
        "true",
        "017",
        "~",
        "1.5",
        "a: b",
        "# no",
        "a #b",
        "- a",
        "'a'",
        '"a"',
        "x: [",
        "\u2028",
        "🧪",
    ],
)
def test_text_that_yaml_would_take_for_something_else(load_text, summary):
    assert kept(load_text, minimal(summary=summary)).summary == summary


def test_long_lists_are_wrapped(load_text):
    scenario = minimal(
        microbatches=(
            spec.MicrobatchSpec(sequences=tuple(range(1000, 1200))),
            spec.MicrobatchSpec(sequences=tuple(range(300)), cp=None, tail_padding=4),
        )
    )
    text = scenario_to_yaml(scenario)
    assert max(map(len, text.splitlines())) <= WIDTH
    assert kept(load_text, scenario) == scenario


def test_ranges_of_a_search_are_written_and_are_no_content(load_text):
    plain = minimal()
    ranges = SearchSpec(tokens=64, cp=(1, 2), zero_lengths=False)
    asked = replace(plain, search=ranges)
    assert kept(load_text, asked) == asked
    assert "search: {tokens: 64, zero_lengths: false, cp: [1, 2]}\n" in scenario_to_yaml(asked)
    assert asked.content_hash == plain.content_hash


def test_ids_of_a_matrix_become_plain_ones():
    assert plain_id("a/b[cp4-seeds-0+1]") == "a/b-cp4-seeds-0-1"
    names = {plain_id("a" * 200 + end) for end in "xy"}
    assert len(names) == 2 and all(len(name) == MAX_ID for name in names)


def test_keys_stand_in_the_order_of_the_documentation():
    headings = (PROJECT_ROOT / "docs" / "scenarios.md").read_text(encoding="utf-8")
    table = headings.split("## Top level")[1].split("###")[0]
    documented = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    scenario = minimal(
        source=("https://example.org",),
        values=spec.ValuesSpec(seeds=(1,)),
        training=spec.TrainingSpec(backward=True),
        limits=spec.LimitsSpec(time_s=1.0),
        repeat=2,
    )
    written = list(yaml.safe_load(scenario_to_yaml(scenario)))
    assert written == [key for key in documented if key in written]
    assert [key for key in ScenarioFile.model_fields if key in written] == written
