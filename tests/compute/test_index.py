"""Index expressions: what simplifies, and that simplification never changes a value."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from compute.index import Expr, constant, variable

RANGES = {"a": (0, 7), "b": (0, 3), "c": (0, 11), "d": (-5, 4)}
VARIABLES = {name: variable(name, *bounds) for name, bounds in RANGES.items()}


def test_split_and_join_of_an_index_cancel() -> None:
    i = variable("i", 0, 23)
    assert i // 12 * 12 + i // 4 % 3 * 4 + i % 4 == i
    a, b = VARIABLES["a"], VARIABLES["b"]
    assert (a * 4 + b) // 4 == a
    assert (a * 4 + b) % 4 == b
    assert (a * 4 + b) // 8 == a // 2
    assert (a * 4 + b) % 8 == a % 2 * 4 + b


def test_ranges_decide_divisions() -> None:
    a = VARIABLES["a"]
    assert a // 8 == constant(0)
    assert a % 8 == a
    assert (a + 8) // 8 == constant(1)
    assert (a + 8) % 8 == a
    assert (a - 8) // 8 == constant(-1)


def test_nested_divisions_become_one() -> None:
    c = VARIABLES["c"]
    assert c // 2 // 3 == c // 6
    assert c % 6 % 3 == c % 3
    assert c % 6 // 3 == c // 3 % 2


def test_equal_expressions_are_equal_however_they_were_made() -> None:
    a, b = VARIABLES["a"], VARIABLES["b"]
    assert a * 3 + b + 2 == 2 + b + a + a * 2
    assert hash(a + b) == hash(b + a)
    assert a - a == constant(0)
    assert a + 1 != a


@st.composite
def expressions(draw: st.DrawFn, depth: int = 4) -> tuple[Expr, str]:
    """An expression, and Python text of the same."""
    if depth == 0 or draw(st.booleans()):
        name = draw(st.sampled_from(sorted(VARIABLES)))
        return VARIABLES[name], name
    left, left_text = draw(expressions(depth - 1))
    op = draw(st.sampled_from(["+", "-", "*", "//", "%", "const"]))
    if op in ("+", "-"):
        right, right_text = draw(expressions(depth - 1))
        return (left + right if op == "+" else left - right), f"({left_text} {op} {right_text})"
    number = draw(st.integers(1, 12))
    if op == "*":
        number *= draw(st.sampled_from([1, -1]))
        return left * number, f"({left_text} * {number})"
    if op == "const":
        return left + number, f"({left_text} + {number})"
    return (left // number if op == "//" else left % number), f"({left_text} {op} {number})"


@settings(max_examples=400, deadline=None)
@given(expressions(), st.lists(st.tuples(*(st.integers(*b) for b in RANGES.values())), min_size=1, max_size=8))
def test_value_and_range_are_right_and_substitution_commutes(expression: tuple[Expr, str], points: list[tuple[int, ...]]) -> None:
    e, text = expression
    for point in points:
        values = dict(zip(RANGES, point, strict=True))
        expected = eval(text, {}, values)
        assert e.evaluate(values) == expected, f"{text} became {e}"
        assert e.lo <= expected <= e.hi
        inner = variable("x", 0, 5)
        moved = e.substitute({"a": inner + 2, "c": inner % 3 * 4 + VARIABLES["b"]})
        shifted = {**values, "a": values["a"] % 6 + 2, "c": values["a"] % 6 % 3 * 4 + values["b"]}
        assert moved.evaluate({**values, "x": values["a"] % 6}) == eval(text, {}, shifted)
