"""Integer expressions over loop variables: how movement ops become addresses.

An `Expr` is `const + sum(coefficient * atom)`; an atom is a variable, or a floor division or remainder of another expression by a positive
constant. Every expression knows its range, so most divisions that reshapes introduce cancel again: `x // 8 * 8 + x % 8` is `x`, and
`(8 * a + b) // 8` is `a` while `0 <= b < 8`. What is left is nearly always offset plus strides.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd
from typing import Union


class Atom:
    """A variable (kind "var") or `expr // divisor` ("div") or `expr % divisor` ("mod"), with its inclusive range."""

    __slots__ = ("divisor", "expr", "hi", "key", "kind", "lo", "names")

    def __init__(self, kind: str, key: str, lo: int, hi: int, names: frozenset[str], expr: Expr | None = None, divisor: int = 1) -> None:
        self.kind = kind
        self.key = key
        self.lo = lo
        self.hi = hi
        self.names = names
        self.expr = expr
        self.divisor = divisor


Term = tuple[Atom, int]
Like = Union["Expr", int]


class Expr:
    """An integer expression. Immutable; equal when written alike. `lo` and `hi` bound its value, both inclusive."""

    __slots__ = ("_key", "_names", "const", "hi", "lo", "terms")

    def __init__(self, terms: tuple[Term, ...], const: int) -> None:
        self.terms = terms
        self.const = const
        lo = hi = const
        for atom, coefficient in terms:
            if coefficient > 0:
                lo += coefficient * atom.lo
                hi += coefficient * atom.hi
            else:
                lo += coefficient * atom.hi
                hi += coefficient * atom.lo
        self.lo = lo
        self.hi = hi
        self._key: str | None = None
        self._names: frozenset[str] | None = None

    @property
    def key(self) -> str:
        if self._key is None:
            parts = [atom.key if coefficient == 1 else f"{coefficient}*{atom.key}" for atom, coefficient in self.terms]
            if self.const or not parts:
                parts.append(str(self.const))
            self._key = "+".join(parts)
        return self._key

    @property
    def names(self) -> frozenset[str]:
        """Names of all variables in it, also inside divisions."""
        if self._names is None:
            self._names = frozenset().union(*(atom.names for atom, _ in self.terms))
        return self._names

    @property
    def is_const(self) -> bool:
        return not self.terms

    def coefficient(self, name: str) -> int:
        """Stride of a variable at top level (0 when it is absent or only inside divisions)."""
        return next((c for atom, c in self.terms if atom.kind == "var" and atom.key == name), 0)

    def is_affine_in(self, name: str) -> bool:
        """True when the variable does not occur inside a division."""
        return all(atom.kind == "var" or name not in atom.names for atom, _ in self.terms)

    def __repr__(self) -> str:
        return self.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expr) and self.key == other.key

    def __add__(self, other: Like) -> Expr:
        if isinstance(other, int):
            return Expr(self.terms, self.const + other) if other else self
        if not other.terms:
            return self + other.const
        if not self.terms:
            return other + self.const
        return _sum((*self.terms, *other.terms), self.const + other.const)

    __radd__ = __add__

    def __mul__(self, factor: int) -> Expr:
        if factor == 1:
            return self
        if factor == 0:
            return ZERO
        return Expr(tuple((atom, c * factor) for atom, c in self.terms), self.const * factor)

    __rmul__ = __mul__

    def __neg__(self) -> Expr:
        return self * -1

    def __sub__(self, other: Like) -> Expr:
        return self + (-other)

    def __rsub__(self, other: int) -> Expr:
        return -self + other

    def __floordiv__(self, divisor: int) -> Expr:
        if divisor == 1:
            return self
        if self.lo // divisor == self.hi // divisor:
            return constant(self.lo // divisor)
        whole, rest = self._split(divisor)
        if rest.lo >= 0 and rest.hi < divisor:
            return whole
        coarse, step = _drop_fine(rest, divisor)
        if step > 1:
            scaled = Expr(tuple((atom, c // step) for atom, c in coarse.terms), coarse.const // step)
            return whole + scaled // (divisor // step)
        if len(rest.terms) == 1 and rest.const == 0 and rest.terms[0][1] == 1:
            atom = rest.terms[0][0]
            if atom.kind == "div":
                assert atom.expr is not None
                return whole + atom.expr // (atom.divisor * divisor)
            if atom.kind == "mod" and atom.divisor % divisor == 0:
                assert atom.expr is not None
                return whole + (atom.expr // divisor) % (atom.divisor // divisor)
        return whole + _atom("div", rest, divisor)

    def __mod__(self, divisor: int) -> Expr:
        if self.lo // divisor == self.hi // divisor:
            return self - self.lo // divisor * divisor
        _, rest = self._split(divisor)
        if rest.lo >= 0 and rest.hi < divisor:
            return rest
        coarse, step = _drop_fine(rest, divisor)
        if step > 1:
            scaled = Expr(tuple((atom, c // step) for atom, c in coarse.terms), coarse.const // step)
            return (scaled % (divisor // step)) * step + (rest - coarse)
        if len(rest.terms) == 1 and rest.const == 0 and rest.terms[0][1] == 1:
            atom = rest.terms[0][0]
            if atom.kind == "mod" and atom.divisor % divisor == 0:
                assert atom.expr is not None
                return atom.expr % divisor
        return _atom("mod", rest, divisor)

    def _split(self, divisor: int) -> tuple[Expr, Expr]:
        """(q, r) with self == divisor * q + r and r free of multiples of the divisor."""
        whole: list[Term] = []
        rest: list[Term] = []
        for atom, c in self.terms:
            if c % divisor == 0:
                whole.append((atom, c // divisor))
            else:
                rest.append((atom, c))
        return Expr(tuple(whole), self.const // divisor), Expr(tuple(rest), self.const % divisor)

    def substitute(self, values: Mapping[str, Expr]) -> Expr:
        """The expression with variables replaced, simplified again."""
        if self.names.isdisjoint(values):
            return self
        result = constant(self.const)
        for atom, c in self.terms:
            result = result + _substitute_atom(atom, values) * c
        return result

    def evaluate(self, values: Mapping[str, int]) -> int:
        """The number for given variables. Raises KeyError for an absent one."""
        total = self.const
        for atom, c in self.terms:
            if atom.kind == "var":
                total += c * values[atom.key]
            else:
                assert atom.expr is not None
                inner = atom.expr.evaluate(values)
                total += c * (inner // atom.divisor if atom.kind == "div" else inner % atom.divisor)
        return total


def constant(value: int) -> Expr:
    return Expr((), value)


def variable(name: str, lo: int, hi: int) -> Expr:
    """A variable with an inclusive range; one that can only be 0 is the constant."""
    if lo == hi:
        return constant(lo)
    return Expr(((Atom("var", name, lo, hi, frozenset((name,))), 1),), 0)


ZERO = constant(0)


def _atom(kind: str, expr: Expr, divisor: int) -> Expr:
    sign = "//" if kind == "div" else "%"
    lo, hi = (expr.lo // divisor, expr.hi // divisor) if kind == "div" else (0, divisor - 1)
    return Expr(((Atom(kind, f"(({expr.key}){sign}{divisor})", lo, hi, expr.names, expr, divisor), 1),), 0)


def _substitute_atom(atom: Atom, values: Mapping[str, Expr]) -> Expr:
    if atom.kind == "var":
        return values.get(atom.key) or Expr(((atom, 1),), 0)
    if atom.names.isdisjoint(values):
        return Expr(((atom, 1),), 0)
    assert atom.expr is not None
    inner = atom.expr.substitute(values)
    return inner // atom.divisor if atom.kind == "div" else inner % atom.divisor


def _drop_fine(rest: Expr, divisor: int) -> tuple[Expr, int]:
    """The part of rest made of multiples of a step > 1 that divides the divisor, when what is left over lies in [0, step). Else (rest, 1)."""
    for step in sorted({gcd(c, divisor) for _, c in rest.terms}, reverse=True):
        if step <= 1:
            break
        coarse = Expr(tuple((atom, c) for atom, c in rest.terms if c % step == 0), rest.const // step * step)
        fine = rest - coarse
        if fine.lo >= 0 and fine.hi < step:
            return coarse, step
    return rest, 1


def _sum(terms: tuple[Term, ...], const: int) -> Expr:
    """Collects equal atoms and joins `k*c*(x//c) + k*(x%c)` to `k*x`."""
    by_key: dict[str, Term] = {}
    for atom, c in terms:
        old = by_key.get(atom.key)
        by_key[atom.key] = (atom, c + old[1]) if old else (atom, c)
    for atom, c in list(by_key.values()):
        if atom.kind != "mod" or c == 0:
            continue
        assert atom.expr is not None
        quotient = atom.expr // atom.divisor
        if len(quotient.terms) != 1 or quotient.const:
            continue
        partner = by_key.get(quotient.terms[0][0].key)
        if partner is None or partner[1] != c * atom.divisor * quotient.terms[0][1]:
            continue
        rest = tuple(t for key, t in by_key.items() if key not in (atom.key, partner[0].key))
        joined = atom.expr * c
        return _sum((*rest, *joined.terms), const + joined.const)
    return Expr(tuple(sorted((t for t in by_key.values() if t[1]), key=lambda t: t[0].key)), const)
