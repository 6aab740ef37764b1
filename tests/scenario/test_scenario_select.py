import pytest

from harness.scenario.select import ExpressionError, by_id, select
from harness.scenario.spec import MicrobatchSpec, ModelSpec, Scenario

ID = "quickstart/Unfused[cp4-128+64]"


@pytest.mark.parametrize(
    ("expression", "holds"),
    [
        ("", True),
        ("unfused", True),
        ("cudnn", False),
        ("CP4 and unfused", True),
        ("cp4 and cudnn", False),
        ("cp2 or unfused", True),
        ("not cp2", True),
        ("not not cp2", False),
        ("not (cp2 or cp4)", False),
        ("cp2 and cudnn or unfused", True),
        ("cp2 and (cudnn or unfused)", False),
        ("not cp2 and unfused[cp4", True),
        ("128+64]", True),
        ("=quickstart/unfused[cp4-128+64]", True),
        ("=quickstart/unfused", False),
        ("nothing", False),
        ("android or unfused", True),
    ],
)
def test_expressions(expression, holds):
    assert by_id(expression)(ID) is holds


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("a b", "expected 'and' or 'or' at column 3, found 'b'"),
        ("a and", "expected a word at column 6, found the end"),
        ("or a", "expected a word at column 1, found 'or'"),
        ("(a or b", "expected ')' at column 8, found the end"),
        ("a)", "expected 'and' or 'or' at column 2, found ')'"),
        ("()", "expected a word at column 2"),
        ("not", "expected a word at column 4"),
        ("not " * 5000 + "a", "nested more than"),
        ("(" * 5000, "nested more than"),
        ("__import__('os')", "expected 'and' or 'or'"),
    ],
)
def test_expressions_that_cannot_be_read(expression, words):
    with pytest.raises(ExpressionError) as error:
        by_id(expression)
    assert words in str(error.value)


def test_tags_must_all_be_there_and_order_is_kept():
    def scenario(name: str, *tags: str) -> Scenario:
        return Scenario(
            id=name,
            summary="",
            model=ModelSpec(name="m"),
            tags=tags,
            microbatches=(MicrobatchSpec(sequences=(8,)),),
        )

    many = [scenario("b", "x", "y"), scenario("a", "x"), scenario("c")]
    assert [s.id for s in select(many)] == ["b", "a", "c"]
    assert [s.id for s in select(many, tags=["x"])] == ["b", "a"]
    assert [s.id for s in select(many, tags=["x", "y"])] == ["b"]
    assert [s.id for s in select(many, expression="not b", tags=["x"])] == ["a"]
