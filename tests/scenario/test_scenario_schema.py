import dataclasses
import functools
import json

import jsonschema
import pytest

from harness.record.codec import from_jsonable, to_jsonable
from harness.scenario import sections, spec
from harness.scenario.files import PROJECT_ROOT
from harness.scenario.generate import (
    SCHEMA_PATH,
    is_current,
    kept_schemas,
    schema,
    schema_text,
)
from harness.scenario.messages import keys_at
from harness.scenario.schema import ScenarioFile
from harness.scenario.yaml12 import parse

SHIPPED = sorted((PROJECT_ROOT / "scenarios").rglob("*.yaml"))


@functools.cache
def validator() -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(schema())


def data_of(path) -> object:
    document, problems = parse(path.read_text(), str(path))
    assert problems == ()
    return document.data


def test_the_kept_schema_is_the_generated_one():
    for path, text in kept_schemas().items():
        assert is_current(path, text), "run dsa-harness schema --write"


def test_a_stale_schema_is_noticed(tmp_path):
    path = tmp_path / "scenario.schema.json"
    assert not is_current(path, schema_text())
    path.write_text(schema_text().replace("version 1", "version 0"))
    assert not is_current(path, schema_text())
    path.write_text(schema_text())
    assert is_current(path, schema_text())


def test_the_schema_is_valid_and_closed():
    kept = json.loads(SCHEMA_PATH.read_text())
    jsonschema.Draft202012Validator.check_schema(kept)
    assert kept["additionalProperties"] is False
    assert kept["required"] == ["id", "summary", "model", "microbatches"]
    assert all(
        d.get("additionalProperties") is False for d in kept["$defs"].values() if "properties" in d
    )
    assert "as" in kept["$defs"]["Known"]["properties"]
    assert kept["$defs"]["Kernels"]["properties"]["source"]["description"]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_scenarios_meet_the_schema(path):
    validator().validate(data_of(path))
    assert path.read_text().startswith("# yaml-language-server: $schema=")
    pointer = path.read_text().splitlines()[0].partition("$schema=")[2]
    assert (path.parent / pointer).resolve() == SCHEMA_PATH


@pytest.mark.parametrize(
    "changes",
    [
        {"foo": 1},
        {"level": "none"},
        {"microbatches": []},
        {"overlays": ["x"]},
        {"parallel": {"context_parallel_size": "4"}},
        {"kernels": {"modelled": {"cudnn_frontend": "1.33.0"}}},
        {"matrix": {"parallel.cp": [1]}},
        {"known": [{"when": {"is_good": True}, "verdict": "hang", "link": "https://x"}]},
    ],
)
def test_the_schema_refuses_what_the_loader_refuses(changes):
    data = {"id": "a", "summary": "b", "model": "small", "microbatches": [{"sequences": [8]}]}
    validator().validate(data)
    with pytest.raises(jsonschema.ValidationError):
        validator().validate(data | changes)


PAIRS = [
    (sections.Kernels, spec.KernelsSpec),
    (sections.Modelled, spec.ModelledKernels),
    (sections.Parallel, spec.ParallelSpec),
    (sections.Values, spec.ValuesSpec),
    (sections.Training, spec.TrainingSpec),
    (sections.Graph, spec.GraphSpec),
    (sections.Reference, spec.ReferenceSpec),
    (sections.Expect, spec.ExpectSpec),
    (sections.Limits, spec.LimitsSpec),
]


@pytest.mark.parametrize(("section", "resolved"), PAIRS, ids=lambda cls: cls.__name__)
def test_sections_have_the_fields_and_defaults_of_the_resolved_form(section, resolved):
    assert list(section.model_fields) == [f.name for f in dataclasses.fields(resolved)]
    assert from_jsonable(resolved, section().model_dump(mode="json")) == resolved()


def test_models_and_microbatches_match_the_resolved_form():
    model = sections.ModelFields().model_dump(mode="json")
    assert from_jsonable(spec.ModelSpec, {"name": "x", **model}) == spec.ModelSpec(name="x")
    microbatch = sections.Microbatch(sequences=[8]).model_dump(mode="json")
    assert from_jsonable(spec.MicrobatchSpec, microbatch) == spec.MicrobatchSpec(sequences=(8,))
    assert {f.name for f in dataclasses.fields(spec.KnownRule)} == set(sections.Known.model_fields)
    assert {f.name for f in dataclasses.fields(spec.Published)} == set(
        sections.Published.model_fields
    )


def test_the_file_and_the_resolved_scenario_have_the_same_keys():
    assert set(ScenarioFile.model_fields) - {"matrix"} == {
        f.name for f in dataclasses.fields(spec.Scenario)
    }


def test_every_key_is_explained():
    undocumented = [
        name
        for name, written in schema()["properties"].items()
        if "description" not in written and not keys_at(ScenarioFile, (name,))
    ]
    assert undocumented == []


def test_known_words_of_the_resolved_form_are_those_of_the_file():
    rule = sections.Known.model_validate(
        {
            "when": {"arch": "sm90"},
            "verdict": "hang",
            "as": "chunk_local_window",
            "link": "http://x",
        }
    )
    assert to_jsonable(rule.model_dump(mode="json"))["behaviour"] == "chunk_local_window"
