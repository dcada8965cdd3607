"""Values that are not known yet when a queue is recorded: named variables and expressions over them.

    address = Variable("address", bits=64)
    queue.append(address & 0xFFFFFFFF, address >> 32)
    queue.submit({"address": 0x200000001000})

Expressions are compared by structure, so that the same expression used twice is evaluated once.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping

from hw.errors import TghwError


class UnboundSymbol(TghwError):
    """A submission without a value for a variable, or with one out of its range. Nothing was sent."""

    code = "unbound-symbol"
    default_means = "the queue was recorded with placeholders, and the submission did not fill all of them"
    default_remedy = "pass a value for every variable in the dictionary of submit()"


_OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "&": operator.and_,
    "|": operator.or_,
    "<<": operator.lshift,
    ">>": operator.rshift,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class Expression:
    """An operation on two operands, each a number or an expression."""

    __slots__ = ("_hash", "left", "operation", "right")

    def __init__(self, operation: str, left: Operand, right: Operand) -> None:
        self.operation = operation
        self.left = left
        self.right = right
        self._hash = hash((operation, left, right))

    def evaluate(self, values: Mapping[str, int]) -> int:
        """The number that this is with these variables. Raises UnboundSymbol."""
        return int(_OPERATIONS[self.operation](evaluate(self.left, values), evaluate(self.right, values)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Expression):
            return NotImplemented
        return (self.operation, self.left, self.right) == (other.operation, other.left, other.right)

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"({self.left!r} {self.operation} {self.right!r})"

    def __add__(self, other: Operand) -> Expression:
        return Expression("+", self, other)

    def __radd__(self, other: int) -> Expression:
        return Expression("+", other, self)

    def __sub__(self, other: Operand) -> Expression:
        return Expression("-", self, other)

    def __rsub__(self, other: int) -> Expression:
        return Expression("-", other, self)

    def __mul__(self, other: Operand) -> Expression:
        return Expression("*", self, other)

    def __rmul__(self, other: int) -> Expression:
        return Expression("*", other, self)

    def __and__(self, other: Operand) -> Expression:
        return Expression("&", self, other)

    def __or__(self, other: Operand) -> Expression:
        return Expression("|", self, other)

    def __lshift__(self, other: Operand) -> Expression:
        return Expression("<<", self, other)

    def __rshift__(self, other: Operand) -> Expression:
        return Expression(">>", self, other)

    def __lt__(self, other: Operand) -> Expression:
        return Expression("<", self, other)

    def __le__(self, other: Operand) -> Expression:
        return Expression("<=", self, other)

    def __gt__(self, other: Operand) -> Expression:
        return Expression(">", self, other)

    def __ge__(self, other: Operand) -> Expression:
        return Expression(">=", self, other)

    def __bool__(self) -> bool:
        raise TypeError(f"{self!r} has no value before it is submitted")


class Variable(Expression):
    """A named number of `bits` bits, given at submission."""

    __slots__ = ("bits", "name")

    def __init__(self, name: str, bits: int = 32) -> None:
        super().__init__("variable", bits, 0)
        self.name = name
        self.bits = bits
        self._hash = hash((name, bits))

    def evaluate(self, values: Mapping[str, int]) -> int:
        value = values.get(self.name)
        if value is None:
            raise UnboundSymbol(f"no value for {self.name}", read=f"given: {', '.join(values) or 'nothing'}")
        if not 0 <= value < 1 << self.bits:
            raise UnboundSymbol(f"{self.name} holds {self.bits} bits, {value:#x} does not fit")
        return value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Expression):
            return NotImplemented
        return isinstance(other, Variable) and (self.name, self.bits) == (other.name, other.bits)

    __hash__ = Expression.__hash__

    def __repr__(self) -> str:
        return self.name


Operand = int | Expression
"""what a recorded word, address or size may be"""


def evaluate(operand: Operand, values: Mapping[str, int]) -> int:
    """The number behind an operand."""
    return operand.evaluate(values) if isinstance(operand, Expression) else operand


def low32(operand: Operand) -> Operand:
    """Bits 31:0."""
    return operand & 0xFFFFFFFF


def high32(operand: Operand) -> Operand:
    """Bits 63:32 of an address or a 64-bit value."""
    return operand >> 32
