from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from record_examples import example, record_types

from harness.record.certificate import CertifiedCase
from harness.record.codec import DecodeError, dumps, from_jsonable, loads, to_jsonable
from harness.record.evidence import EVIDENCE_KINDS, ValueEvidence, kind_of
from harness.record.path import CallEvidence
from harness.record.result import Attempt, RankOutcome, ScenarioResult
from harness.record.selection import OverlapSlice, OverlapStats
from harness.record.verdict import Verdict

TYPES = record_types()
CHECKED = (Attempt, CertifiedCase, ScenarioResult)
"""Types whose constructors ask for more than types."""
NON_FINITE = ("nan", "inf", "-inf")


def test_every_record_module_is_covered() -> None:
    names = {cls.__name__ for cls in TYPES}
    assert {"OverlapStats", "Environment", "GpuFacts", "Attempt", "RunRecord", "Proof"} <= names
    assert set(EVIDENCE_KINDS.values()) <= set(TYPES)


@pytest.mark.parametrize("cls", TYPES, ids=lambda cls: cls.__name__)
def test_round_trip_of_every_type(cls: type) -> None:
    record = example(cls)
    text = dumps(record)
    assert loads(cls, text) == record
    assert loads(cls, dumps(record, indent=1)) == record
    assert list(json.loads(text)) == [f.name for f in dataclasses.fields(cls)]


@pytest.mark.parametrize("cls", TYPES, ids=lambda cls: cls.__name__)
def test_unknown_key_is_refused_by_name(cls: type) -> None:
    data = to_jsonable(example(cls)) | {"not_a_field": 1}
    with pytest.raises(DecodeError, match=f"{cls.__name__} has no field 'not_a_field'"):
        from_jsonable(cls, data)


@pytest.mark.parametrize("cls", TYPES, ids=lambda cls: cls.__name__)
def test_missing_keys_take_defaults_or_are_refused(cls: type) -> None:
    full = to_jsonable(example(cls))
    for item in dataclasses.fields(cls):
        data = {key: value for key, value in full.items() if key != item.name}
        needed = item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING
        if needed:
            with pytest.raises(DecodeError, match=item.name):
                from_jsonable(cls, data)
        elif cls not in CHECKED:
            assert isinstance(from_jsonable(cls, data), cls)


@pytest.mark.parametrize("cls", TYPES, ids=lambda cls: cls.__name__)
def test_wrong_type_is_refused_with_its_path(cls: type) -> None:
    for item in dataclasses.fields(cls):
        data = to_jsonable(example(cls)) | {item.name: [[object]]}
        with pytest.raises(DecodeError, match=rf"^\$\.{item.name}"):
            from_jsonable(cls, data)


@pytest.mark.parametrize(
    ("hint", "data"),
    [
        (int, True),
        (int, 1.0),
        (int, "1"),
        (float, True),
        (float, "1.0"),
        (float, "NaN"),
        (float, None),
        (float, 10**400),
        (bool, 1),
        (str, 1),
        (Verdict, "green"),
        (Verdict, ["pass"]),
        (tuple[int, ...], {"0": 1}),
        (tuple[int, int], [1]),
        (tuple[int, int], [1, 2, 3]),
        (tuple[int, ...], [1, "2"]),
        (dict[str, int], [1]),
        (dict[str, int], {"a": "b"}),
        (int | None, "x"),
        (Literal["a", "b"], "c"),
        (list[int], [1]),
    ],
)
def test_scalars_and_containers_are_strict(hint: object, data: object) -> None:
    with pytest.raises(DecodeError, match=r"^\$"):
        from_jsonable(hint, data)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("hint", "data", "value"),
    [
        (float, 1, 1.0),
        (int | None, None, None),
        (int | float, 1, 1),
        (bool | int | str, True, True),
        (tuple[int, int], [1, 2], (1, 2)),
        (Literal["a", "b"], "b", "b"),
        (dict[str, int], {"a": 1}, {"a": 1}),
        (object, {"a": [None]}, {"a": [None]}),
    ],
)
def test_what_fits_is_taken_as_it_is(hint: object, data: object, value: object) -> None:
    found = from_jsonable(hint, data)  # type: ignore[arg-type]
    assert found == value
    assert type(found) is type(value)


def value_evidence(difference: float) -> ValueEvidence:
    return example(ValueEvidence, max_abs_diff=difference)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, -0.0, 5e-324, 1e308])
def test_odd_floats_survive(number: float) -> None:
    text = dumps(value_evidence(number))
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    found = loads(ValueEvidence, text).max_abs_diff
    assert found == number or (math.isnan(found) and math.isnan(number))
    assert math.copysign(1, found) == math.copysign(1, number) or math.isnan(number)


def test_string_spelled_like_a_float_is_the_float_where_a_field_takes_both() -> None:
    call = example(CallEvidence, facts={"a": "nan", "b": "Nan"})
    found = loads(CallEvidence, dumps(call)).facts
    assert isinstance(found["a"], float)
    assert found["b"] == "Nan"


counts = st.integers(min_value=-(2**70), max_value=2**70)
texts = st.text(max_size=20).filter(lambda text: text not in NON_FINITE)
facts = st.dictionaries(
    texts, st.one_of(counts, st.floats(allow_nan=False), texts, st.booleans(), st.none())
)


@settings(max_examples=40, deadline=None)
@given(rows=counts, gap=st.floats(allow_nan=False), name=texts, facts=facts)
def test_any_content_survives(rows: int, gap: float, name: str, facts: dict[str, object]) -> None:
    part = OverlapSlice(name=name, stats=OverlapStats(rows=rows, largest_gap=gap))
    assert loads(OverlapSlice, dumps(part)) == part
    call = example(CallEvidence, symbol=name, facts=facts)
    back = loads(CallEvidence, dumps(call))
    assert back == call
    assert [type(v) for v in back.facts.values()] == [type(v) for v in call.facts.values()]


def test_contradictory_record_is_a_decode_error() -> None:
    data = to_jsonable(example(ScenarioResult))
    assert from_jsonable(ScenarioResult, data).verdict is Verdict.CRASH
    data["attempts"][0]["fault"] = None
    with pytest.raises(DecodeError, match=r"^\$\.attempts\[0\]: .*needs a fault report"):
        from_jsonable(ScenarioResult, data)


def test_message_of_a_huge_wrong_value_stays_short() -> None:
    with pytest.raises(DecodeError) as caught:
        from_jsonable(RankOutcome, {"global_rank": "x" * 10**6})
    assert len(str(caught.value)) < 200


def test_values_without_a_json_form_are_refused() -> None:
    assert to_jsonable({"a": Path("x"), "b": (1, frozenset({2}))}) == {"a": "x", "b": [1, [2]]}
    with pytest.raises(TypeError, match="complex has no JSON form"):
        to_jsonable((1j,))


@dataclass(frozen=True, kw_only=True)
class Outer:
    inner: dict[str, OverlapStats] = field(default_factory=dict)


def test_path_names_keys_and_places() -> None:
    assert from_jsonable(Outer, {"inner": {"a": {"rows": 1}}}).inner["a"].rows == 1
    with pytest.raises(DecodeError, match=r"^\$\.inner\.a\.rows: expected int"):
        from_jsonable(Outer, {"inner": {"a": {"rows": "1"}}})


def test_kind_of_knows_every_kind_and_nothing_else() -> None:
    for kind, cls in EVIDENCE_KINDS.items():
        assert kind_of(example(cls)) == kind
    with pytest.raises(TypeError, match="OverlapStats is no evidence kind"):
        kind_of(OverlapStats(rows=1))
