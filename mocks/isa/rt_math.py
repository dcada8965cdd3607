"""Native vector mathematics in f64, accurate enough that one rounding to f32 is the correctly rounded result in all but about one
case in 10^7: 2^x, log2 x, sine and cosine of revolutions, 1/sqrt x. Written out here so that nothing depends on a C library.

Polynomials: 2^f on [-1/2, 1/2] by its Taylor series; log2 m through atanh((m-1)/(m+1)); sine and cosine of up to 1/8 revolution.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

from hw.errors import NotSupported
from mocks.isa.ir import LANES, Builder, Value, suffix, type_name
from mocks.isa.native import compile_helper

LANES_AT_ONCE = 8


def _horner(b: Builder, x: Value, coefficients: list[float]) -> Value:
    """coefficients from the highest power down."""
    total = b.const("f64", coefficients[0], x.n)
    for coefficient in coefficients[1:]:
        total = b.overloaded("fma", total, x, b.const("f64", coefficient, x.n))
    return total


# 1.5 * 2^52: added to a whole number below 2^51 it shows that number in the low bits, which needs no vector conversion instruction.
SHIFTER = 6755399441055744.0
SHIFTER_BITS = 0x4338000000000000


def _to_integer(whole: Value) -> Value:
    return (whole + SHIFTER).as_int() - SHIFTER_BITS


def _from_integer(number: Value) -> Value:
    return (number + SHIFTER_BITS).as_float() - SHIFTER


def _exp2(b: Builder, x: Value) -> Value:
    limited = x.cmp("ogt", 1100.0).select(1100.0, x)
    limited = limited.cmp("olt", -1200.0).select(-1200.0, limited)
    whole = b.overloaded("rint", limited)
    part = limited - whole
    log_2 = math.log(2)
    series = [log_2**k / math.factorial(k) for k in range(13, -1, -1)]
    mantissa = _horner(b, part, series)
    # 2^whole in two steps, so that results down to the smallest f64 denormal come out.
    n = _to_integer(whole)
    half = n.ashr(1)
    first = ((half + 1023) << 52).cast("f64")
    second = ((n - half + 1023) << 52).cast("f64")
    return x.cmp("uno", x).select(x, mantissa * first * second)


def _log2(b: Builder, x: Value) -> Value:
    tiny = x.cmp("olt", 2.0**-1022)
    scaled = tiny.select(x * 2.0**54, x)
    bits = scaled.as_int()
    # Exponent chosen so that the mantissa lies in [sqrt(1/2), sqrt(2)).
    shifted = bits - 0x3FE6A09E667F3BCD
    exponent = shifted.ashr(52)
    mantissa = (bits - (exponent << 52)).as_float()
    s = (mantissa - 1.0) / (mantissa + 1.0)
    square = s * s
    series = [2 / math.log(2) / (2 * k + 1) for k in range(11, -1, -1)]
    fraction = s * _horner(b, square, series)
    result = _from_integer(exponent) - tiny.select(b.const("f64", 54.0, x.n), 0.0) + fraction
    result = x.cmp("oeq", 0.0).select(-math.inf, result)
    result = x.cmp("oeq", math.inf).select(x, result)
    return (x.cmp("uno", x) | x.cmp("olt", 0.0)).select(x.cmp("uno", x).select(x, math.nan), result)


def _sine_cosine(b: Builder, x: Value, quarter: int) -> Value:
    """sin(2 pi (x + quarter/4))."""
    turn = x - b.overloaded("rint", x)  # exact; infinity gives NaN
    quarters = b.overloaded("rint", turn * 4.0)
    rest = (turn - quarters * 0.25) * (2 * math.pi)  # |rest| <= pi / 4
    square = rest * rest
    sine = rest * _horner(b, square, [(-1) ** k / math.factorial(2 * k + 1) for k in range(9, -1, -1)])
    cosine = _horner(b, square, [(-1) ** k / math.factorial(2 * k) for k in range(9, -1, -1)])
    index = _to_integer(quarters) + quarter
    value = (index & 1).ne(0).select(cosine, sine)
    negative = (index & 2).ne(0)
    return negative.select(-value, value)


def _rsq(b: Builder, x: Value) -> Value:
    return 1.0 / b.overloaded("sqrt", x)


FUNCTIONS: dict[str, Callable[[Builder, Value], Value]] = {
    "exp2": _exp2,
    "log2": _log2,
    "sin": lambda b, x: _sine_cosine(b, x, 0),
    "cos": lambda b, x: _sine_cosine(b, x, 1),
    "rsq": _rsq,
}


@functools.cache
def function_address(name: str) -> int:
    """`void (double in[32], double out[32])`."""
    b = Builder()
    source, target = Value(b, "%source", "ptr", 1), Value(b, "%target", "ptr", 1)
    with b.loop(LANES // LANES_AT_ONCE) as index:
        offset = (index * (8 * LANES_AT_ONCE)).zext("i64")
        x = source.at(offset).load("f64", LANES_AT_ONCE, 8)
        target.at(offset).store(FUNCTIONS[name](b, x), 8)
    b.ret()
    text = b.function(f"math_{name}", "void", [("ptr", "source"), ("ptr", "target")])
    return compile_helper(b.declarations() + text, f"math_{name}")


def _scratch(b: Builder, ty: str, count: int, key: str) -> Value:
    """A stack buffer of the function under construction, made once and reused."""
    name = f"%scratch_{key}"
    b.allocas[name] = f"{name} = alloca {type_name(ty, count)}, align 64"
    return Value(b, name, "ptr", 1)


def vector_function(b: Builder, name: str, x: Value) -> Value:
    """Calls one of FUNCTIONS on 32 f64 lanes."""
    source, target = _scratch(b, "f64", LANES, "f64a"), _scratch(b, "f64", LANES, "f64r")
    source.store(x, 64)
    b.call(function_address(name), None, source, target)
    return target.load("f64", LANES, 64)


ROUNDING_BITS = {1: 0x4000, 2: 0x2000, 3: 0x6000}  # MXCSR rounding control for up, down, toward zero
MXCSR_DEFAULT = 0x1F80


@functools.cache
def _directed_address(op: str, ty: str, rounding: int, operands: int) -> int:
    """`void (in0, in1, in2, out)` over 32 lanes under another rounding mode of the host."""
    import llvmlite.binding as llvm

    if not llvm.get_default_triple().startswith("x86_64"):
        raise NotSupported("a kernel that sets a rounding mode other than nearest-even, on a host that is not x86-64")
    b = Builder()
    names = ["in0", "in1", "in2"][:operands]
    control = b.emit("alloca i32, align 4", "ptr")
    b.declare("llvm.x86.sse.ldmxcsr", "declare void @llvm.x86.sse.ldmxcsr(ptr)")
    loads = [Value(b, f"%{name}", "ptr", 1).load(ty, LANES, 64) for name in names]
    control.store(b.i32(MXCSR_DEFAULT | ROUNDING_BITS[rounding]))
    b.line(f"call void @llvm.x86.sse.ldmxcsr(ptr {control.ref}) strictfp")
    name = f"llvm.experimental.constrained.{op}.{suffix(loads[0])}"
    types = ", ".join(v.type for v in loads)
    b.declare(name, f"declare {loads[0].type} @{name}({types}, metadata, metadata)")
    shown = ", ".join(f"{v.type} {v.ref}" for v in loads)
    result = b.emit(f'call {loads[0].type} @{name}({shown}, metadata !"round.dynamic", metadata !"fpexcept.strict") strictfp', ty, LANES)
    Value(b, "%out", "ptr", 1).store(result, 64)
    control.store(b.i32(MXCSR_DEFAULT))
    b.line(f"call void @llvm.x86.sse.ldmxcsr(ptr {control.ref}) strictfp")
    b.ret()
    symbol = f"directed_{op}_{ty}_{rounding}"
    text = b.function(symbol, "void", [("ptr", n) for n in [*names, "out"]], "strictfp")
    return compile_helper(b.declarations() + text, symbol)


def directed(b: Builder, op: str, rounding: int, *operands: Value) -> Value:
    """fadd, fmul or fma of f32 or f64 lanes with rounding up, down or toward zero."""
    ty = operands[0].ty
    places = [_scratch(b, ty, LANES, f"{ty}{k}") for k in range(len(operands) + 1)]
    for place, operand in zip(places, operands, strict=False):
        place.store(operand, 64)
    b.call(_directed_address(op, ty, rounding, len(operands)), None, *places)
    return places[-1].load(ty, LANES, 64)
