import math
from itertools import pairwise

import pytest

from harness.scenario.yaml12 import MAX_ALIASES, MAX_DEPTH, MAX_NODES, Mark, parse, plain_scalar


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("on", "on"),
        ("no", "no"),
        ("1:30", "1:30"),
        ("017", 17),
        ("0o17", 15),
        ("0x1F", 31),
        ("1_000", "1_000"),
        ("2026-11-29", "2026-11-29"),
        ("True", True),
        ("false", False),
        ("~", None),
        ("", None),
        ("-.inf", -math.inf),
        ("+.5", 0.5),
        ("1.", 1.0),
        ("-12", -12),
        ("1.32.0", "1.32.0"),
    ],
)
def test_plain_scalars_follow_yaml_1_2(text, value):
    found = plain_scalar(text)
    assert found == value
    assert type(found) is type(value)


def test_nan_is_a_number():
    assert math.isnan(plain_scalar(".NaN"))


def test_quoted_and_tagged_strings_stay_strings():
    document, problems = parse("a: '1'\nb: !!str 2\nc: |\n  3\n", "f")
    assert document.data == {"a": "1", "b": "2", "c": "3\n"}
    assert problems == ()


def test_positions_are_one_based_and_count_characters():
    document, _ = parse("a:\n  é: {ü: [x, yy]}\n", "f")
    assert document.keys["a", "é"] == Mark(line=2, column=3)
    assert document.values["a", "é", "ü"] == Mark(line=2, column=10)
    assert document.values["a", "é", "ü", 1] == Mark(line=2, column=14)


def test_a_missing_value_points_at_the_nearest_key_above():
    document, _ = parse("a:\n  b: 1\n", "f")
    assert document.at_value(("a", "c", 3)) == Mark(line=1, column=1)
    assert document.at_key(("a", "b")) == Mark(line=2, column=3)


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("a: 1\nb: 2\na: 3\n", (3, 1), "a: repeated key, first on line 1"),
        ("{a: {b: 1, b: 1}}", (1, 12), "b: repeated key, first on line 1"),
        ("a:\n\t- b\n", (2, 1), "a tab stands where YAML allows spaces only"),
        ("a: 1\n---\nb: 1\n", (2, 1), "one scenario per file"),
        ("a: !!python/object:os.system x\n", (1, 4), "tag !!python/object:os.system"),
        ("a: !!int 3\n", (1, 4), "tag !!int"),
        ("a: !x {}\n", (1, 4), "tag !x"),
        ("? [1]\n: 2\n", (1, 3), "a key is a plain word"),
        ("a: *b\n", (1, 4), "undefined alias"),
        ("a: 'x\n", (2, 1), "found unexpected end of stream"),
        ("a: x\n b: y: z\n", (2, 3), "not valid YAML"),
        ("ab: \x07\n", (1, 5), "U+0007"),
        ("é: 1\nüü: \x00\n", (2, 5), "U+0000"),
        ("a: " + "9" * 5000, (1, 4), "number 99999999999999999999"),
        ("[" * (MAX_DEPTH + 1), (1, MAX_DEPTH + 1), f"more than {MAX_DEPTH} levels"),
        ("[" * 500_000, (1, 1001), f"more than {MAX_DEPTH} levels"),
        ("a: &x [*x]\n", (1, 4), f"more than {MAX_DEPTH} levels deep, aliases"),
        ("[" + "0," * MAX_NODES + "]", (1, 2 * MAX_NODES), f"more than {MAX_NODES} values"),
    ],
)
def test_what_yaml_refuses_is_said_with_its_place(text, place, words):
    _, problems = parse(text, "f.yaml")
    assert [(p.line, p.column) for p in problems] == [place]
    assert words in problems[0].message


def test_aliases_are_bounded_in_number():
    text = "a: &a 1\nb: [" + ", ".join(["*a"] * MAX_ALIASES) + "{}]\n"
    assert parse(text.format(""), "f")[1] == ()
    (problem,) = parse(text.format(", *a"), "f")[1]
    assert f"more than {MAX_ALIASES} aliases" in problem.message


def test_aliases_are_bounded_in_what_they_expand_to():
    lines = ["a: &a [x, x, x, x, x, x, x, x]"]
    lines += [f"{y}: &{y} [*{x}, *{x}, *{x}, *{x}, *{x}, *{x}]" for x, y in pairwise("abcdefghij")]
    (problem,) = parse("\n".join(lines), "f")[1]
    assert f"more than {MAX_NODES} values, aliases written out" in problem.message


def test_a_repeated_key_does_not_hide_the_rest():
    document, problems = parse("a: 1\na: 2\nb: 3\n", "f")
    assert document.data == {"a": 1, "b": 3}
    assert len(problems) == 1
