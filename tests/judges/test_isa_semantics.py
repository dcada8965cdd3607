"""LLVM judges what the executor makes of machine code: one LLVM IR function, compiled for gfx1100 and executed here, compiled for this
host and executed natively, or computed by numpy where the host has no correctly rounded counterpart.

Integers, comparisons, classes, conversions and every correctly rounded float operation must agree bit for bit (NaNs as NaNs).
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mocks.isa import program, valu
from tests.judges import isa_operations as ops
from tests.mocks.isa.kernels import Function, gpu_results, host_results

FLUSH = '"denormal-fp-math-f32"="preserve-sign,preserve-sign"'


def as_array(raw: bytes, ty: str) -> np.ndarray:
    return np.frombuffer(raw, dtype=ops.NUMPY[ty])


def bits(array: np.ndarray) -> np.ndarray:
    return array.view(f"u{array.itemsize}")


def differences(got: np.ndarray, wanted: np.ndarray, zeros_equal: bool = False) -> np.ndarray:
    """Indices where two results differ. Any NaN equals any other."""
    same = bits(got) == bits(wanted)
    if got.dtype.kind == "f":
        same |= np.isnan(got) & np.isnan(wanted)
        if zeros_equal:
            same |= got == wanted
    return np.flatnonzero(~same)


def report(name: str, index: int, inputs: list[np.ndarray], got: np.ndarray, wanted: np.ndarray) -> str:
    shown = ", ".join(f"{int(bits(a)[index]):#x}" for a in inputs)
    return f"{name}({shown}): executor {got[index]!r}, judge {wanted[index]!r}"


def compare(function: Function, inputs: list[np.ndarray], zeros_equal: bool = False, attributes: str = "") -> None:
    gpu, host = gpu_results(function, inputs, attributes), host_results(function, inputs)
    wrong = []
    for (name, ty, _), got_raw, wanted_raw in zip(function.outputs, gpu, host, strict=True):
        got, wanted = as_array(got_raw, ty), as_array(wanted_raw, ty)
        wrong += [report(name, i, inputs, got, wanted) for i in differences(got, wanted, zeros_equal)[:2]]
    assert not wrong, "\n".join(wrong)


def chunks(operations: list[ops.Operation], size: int = 10) -> list[list[ops.Operation]]:
    return [operations[k : k + size] for k in range(0, len(operations), size)]


# --- against the host ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ty", ops.INTEGERS)
def test_integer_operations(ty: str) -> None:
    inputs = ops.raw_inputs(ty, 2, seed=1)
    for part in chunks(ops.integer_operations(ty)):
        compare(ops.function([ty, ty], part), inputs)


@pytest.mark.parametrize("ty", ops.INTEGERS)
def test_integer_compares_and_casts(ty: str) -> None:
    inputs = ops.raw_inputs(ty, 2, seed=2)
    compare(ops.function([ty, ty], ops.integer_compares(ty)), inputs)
    compare(ops.function([ty], ops.integer_casts(ty)), inputs[:1])


def test_bools() -> None:
    inputs = [np.arange(ops.COUNT, dtype=np.uint8) >> k & 1 for k in range(2)]
    operations: list[ops.Operation] = [(op, "i1", f"  %r = {op} i1 %a, %b") for op in ("and", "or", "xor", "add", "mul")]
    operations += [(f"{op} {ty}", ty, f"  %r = {op} i1 %a to {ty}") for ty in ops.INTEGERS for op in ("zext", "sext")]
    operations += [(f"to {ty}", ty, f"  %r = uitofp i1 %a to {ty}") for ty in ops.FLOATS]
    compare(ops.function(["i1", "i1"], operations), inputs)


@pytest.mark.parametrize("ty", ops.FLOATS)
def test_correctly_rounded_float_operations(ty: str) -> None:
    compare(ops.function([ty] * 3, ops.float_operations(ty)), ops.raw_inputs(ty, 3, seed=3))


@pytest.mark.parametrize("ty", ops.FLOATS)
def test_minimum_and_maximum(ty: str) -> None:
    compare(ops.function([ty] * 2, ops.float_selections(ty)), ops.raw_inputs(ty, 2, seed=4), zeros_equal=True)


@pytest.mark.parametrize("ty", ops.FLOATS)
def test_float_compares_and_classes(ty: str) -> None:
    inputs = ops.raw_inputs(ty, 2, seed=5)
    compare(ops.function([ty] * 2, ops.float_compares(ty)), inputs)
    compare(ops.function([ty], ops.class_tests(ty)), inputs[:1])


@pytest.mark.parametrize("ty", ops.FLOATS)
def test_float_casts(ty: str) -> None:
    compare(ops.function([ty], ops.float_casts(ty)), ops.raw_inputs(ty, 1, seed=6))


PACKED = {"<2 x half>": ("half", "v2f16"), "<2 x i16>": ("i16", "v2i16"), "<4 x i8>": ("i8", "v4i8")}


@pytest.mark.parametrize("kind", PACKED)
def test_packed_values(kind: str) -> None:
    """What becomes packed instructions and byte permutations."""
    element, suffix = PACKED[kind]
    if element == "half":
        operations: list[ops.Operation] = [(op, kind, f"  %r = {op} {kind} %a, %b") for op in ("fadd", "fsub", "fmul")]
        operations.append(("fabs", kind, ops.call(f"llvm.fabs.{suffix}", kind, f"{kind} %a")))
        operations.append(("swapped", kind, f"  %s = shufflevector {kind} %b, {kind} %b, <2 x i32> <i32 1, i32 0>\n  %r = fadd {kind} %a, %s"))
    else:
        operations = [(op, kind, f"  %r = {op} {kind} %a, %b") for op in ("add", "sub", "mul", "and", "xor")]
        operations += [(op, kind, f"  %s = and {kind} %b, splat ({element} 7)\n  %r = {op} {kind} %a, %s") for op in ("shl", "lshr", "ashr")]
    if element == "i16":
        for name in ("smin", "umax", "uadd.sat", "ssub.sat"):
            operations.append((name, kind, ops.call(f"llvm.{name}.{suffix}", kind, f"{kind} %a", f"{kind} %b")))
    inputs = [np.resize(a, ops.COUNT * int(kind[1])).view(np.uint32) for a in ops.raw_inputs(element, 2, seed=7)]
    function = ops.function([kind, kind], operations)
    for (name, _, _), got, wanted in zip(operations, gpu_results(function, inputs), host_results(function, inputs), strict=True):
        assert not len(differences(as_array(got, element), as_array(wanted, element))), name


# --- against numpy -----------------------------------------------------------------------------------------------------------


def place(values: np.ndarray) -> np.ndarray:
    """Number of the float in the order of all floats of its type."""
    raw = bits(values).astype(np.int64)
    sign = 1 << (8 * values.itemsize - 1)
    return np.where(raw & sign, -(raw & (sign - 1)), raw)


def check(function: Function, inputs: list[np.ndarray], wanted: list[np.ndarray], steps: int = 0, attributes: str = "") -> None:
    """Results may be `steps` representable values away from the correctly rounded ones."""
    for (name, ty, _), raw, want in zip(function.outputs, gpu_results(function, inputs, attributes), wanted, strict=True):
        got = as_array(raw, ty)
        wrong = differences(got, want)
        if steps and len(wrong):
            wrong = np.flatnonzero((np.abs(place(got) - place(want)) > steps) & ~(np.isnan(got) & np.isnan(want)))
        assert not len(wrong), report(name, int(wrong[0]), inputs, got, want)


def to_bfloat(values: np.ndarray) -> np.ndarray:
    """float32 to bfloat16 bits, nearest even."""
    raw = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    rounded = (raw + 0x7FFF + (raw >> 16 & 1)) >> 16
    return np.where(np.isnan(values), raw >> 16 | 0x40, rounded).astype(np.uint16)


def from_bfloat(raw: np.ndarray) -> np.ndarray:
    return (raw.astype(np.uint32) << 16).view(np.float32)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_half_fma_rounds_once() -> None:
    """f64 holds the product exactly, and never rounds the sum to a tie of f16."""
    inputs = ops.raw_inputs("half", 3, seed=8)
    a, b, c = (x.view(np.float16).astype(np.float64) for x in inputs)
    function = ops.function(["half"] * 3, [("fma", "half", "  %r = call half @llvm.fma.f16(half %a, half %b, half %c)")])
    check(function, inputs, [(a * b + c).astype(np.float16)])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_conversions_to_half_round_once() -> None:
    doubles = ops.raw_inputs("double", 1, seed=9)
    halfway = np.float64(1.0) + np.float64(2.0**-11) + np.array([-1, 0, 1]) * 2.0**-40
    doubles[0][-3:] = halfway.view(np.uint64)
    check(ops.function(["double"], [("f64 to f16", "half", "  %r = fptrunc double %a to half")]), doubles, [doubles[0].view(np.float64).astype(np.float16)])
    small = np.random.default_rng(10).integers(-70000, 70000, ops.COUNT).astype(np.int64)
    check(ops.function(["i64"], [("i64 to f16", "half", "  %r = sitofp i64 %a to half")]), [small], [small.astype(np.float64).astype(np.float16)])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_bfloat_is_computed_in_float_and_rounded() -> None:
    inputs = ops.raw_inputs("bfloat", 2, seed=11)
    a, b = (from_bfloat(x) for x in inputs)
    operations: list[ops.Operation] = [(op, "bfloat", f"  %r = {op} bfloat %a, %b") for op in ("fadd", "fsub", "fmul", "fdiv")]
    operations.append(("extend", "float", "  %r = fpext bfloat %a to float"))
    operations.append(("less", "i1", "  %r = fcmp olt bfloat %a, %b"))
    wanted = [to_bfloat(x) for x in (a + b, a - b, a * b, a / b)] + [a, (a < b).astype(np.uint8)]
    function = ops.function(["bfloat"] * 2, operations)
    for (name, ty, _), raw, want in zip(operations, gpu_results(function, inputs), wanted, strict=True):
        got = as_array(raw, ty)
        if ty == "bfloat":
            got, want = from_bfloat(got), from_bfloat(want)
        wrong = differences(got, want)
        assert not len(wrong), report(name, int(wrong[0]), inputs, got, want)
    floats = ops.raw_inputs("float", 1, seed=12)
    truncated = gpu_results(ops.function(["float"], [("to bf16", "bfloat", "  %r = fptrunc float %a to bfloat")]), floats)
    got, want = from_bfloat(as_array(truncated[0], "bfloat")), from_bfloat(to_bfloat(floats[0].view(np.float32)))
    assert not len(differences(got, want))


def flushed(values: np.ndarray) -> np.ndarray:
    tiny = np.abs(values) < np.finfo(np.float32).tiny
    return np.where(tiny, np.copysign(np.float32(0), values), values).astype(np.float32)


# name: exact function in f64
INSTRUCTIONS = {
    "rcp": lambda x: 1 / x,
    "rsq": lambda x: 1 / np.sqrt(x),
    "sqrt": np.sqrt,
    "exp2": np.exp2,
    "log": np.log2,
    "sin": lambda x: np.sin(2 * np.pi * (x - np.rint(x))),
    "cos": lambda x: np.cos(2 * np.pi * (x - np.rint(x))),
}


def curves(seed: int) -> np.ndarray:
    """All edge values, values around one, and values of a size where the functions have something to do."""
    rng = np.random.default_rng(seed)
    values = ops.raw_inputs("float", 1, seed)[0].view(np.float32).copy()
    values[-1024:-512] = rng.uniform(-90, 90, 512)
    values[-512:] = rng.uniform(0, 4, 512)
    return values


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_transcendental_instructions_are_within_one_step(name: str) -> None:
    """The bare instruction: f32 denormals flushed on both ends, whatever the mode."""
    x = curves(13)
    if name in ("sin", "cos"):
        x = x[np.abs(x) < 2.0**20]
        x = np.resize(x, ops.COUNT)
    function = ops.function(["float"], [(name, "float", f"  %r = call float @llvm.amdgcn.{name}.f32(float %a)")])
    wanted = flushed(INSTRUCTIONS[name](flushed(x).astype(np.float64)).astype(np.float32))
    got = as_array(gpu_results(function, [x])[0], "float")
    near_zero = np.abs(wanted) < 2.0**-40  # zeros of sine and cosine that f64 does not meet exactly
    wrong = differences(np.where(near_zero, 0, got).astype(np.float32), np.where(near_zero, 0, wanted).astype(np.float32), zeros_equal=name in ("sin", "cos"))
    steps = np.abs(bits(got).astype(np.int64) - bits(wanted).astype(np.int64))
    assert all(steps[i] <= 1 for i in wrong), report(name, int(wrong[0]), [x], got, wanted)
    assert len(wrong) <= 2  # in fact correctly rounded almost everywhere


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_exponentials_and_logarithms_of_the_compiler_are_within_one_step() -> None:
    """LLVM's expansions with range scaling keep denormals."""
    x = curves(14)
    functions = {"exp2": np.exp2, "exp": np.exp, "log2": np.log2, "log": np.log, "log10": np.log10}
    operations: list[ops.Operation] = [(name, "float", f"  %r = call float @llvm.{name}.f32(float %a)") for name in functions]
    wide = x.astype(np.float64)
    check(ops.function(["float"], operations), [x], [f(wide).astype(np.float32) for f in functions.values()], steps=1)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_half_transcendentals_are_within_one_step() -> None:
    x = ops.raw_inputs("half", 1, seed=15)[0].view(np.float16)
    functions = {"exp2": np.exp2, "log2": np.log2, "sqrt": np.sqrt}
    operations: list[ops.Operation] = [(name, "half", f"  %r = call half @llvm.{name}.f16(half %a)") for name in functions]
    operations += [(name, "half", f"  %r = call half @llvm.amdgcn.{name}.f16(half %a)") for name in ("rcp", "rsq")]
    wide = x.astype(np.float64)
    wanted = [f(wide) for f in functions.values()] + [1 / wide, 1 / np.sqrt(wide)]
    check(ops.function(["half"], operations), [x], [w.astype(np.float16) for w in wanted], steps=1)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_kernels_compiled_to_flush_denormals() -> None:
    """The mode comes from the launch words; LLVM switches it at run time around a precise division."""
    inputs = [a.view(np.float32) for a in ops.raw_inputs("float", 2, seed=16)]
    a, b = (flushed(x) for x in inputs)
    operations: list[ops.Operation] = [(op, "float", f"  %r = {op} float %a, %b") for op in ("fadd", "fmul", "fdiv")]
    wanted = [flushed(a + b), flushed(a * b), flushed(inputs[0] / inputs[1])]
    function = ops.function(["float"] * 2, operations)
    results = [as_array(raw, "float") for raw in gpu_results(function, inputs, FLUSH)]
    for name, got, want in zip(("fadd", "fmul"), results, wanted, strict=False):
        wrong = differences(got, want)
        assert not len(wrong), report(name, int(wrong[0]), inputs, got, want)
    normal = (np.abs(inputs[0]) >= np.finfo(np.float32).tiny) & (np.abs(inputs[1]) >= np.finfo(np.float32).tiny) & (np.abs(wanted[2]) > 0)
    wrong = [i for i in differences(results[2], wanted[2]) if normal[i]]
    assert not wrong, report("fdiv", wrong[0], inputs, results[2], wanted[2])


# --- random programs -----------------------------------------------------------------------------------------------------------


@st.composite
def straight_line(draw: st.DrawFn) -> tuple[str, list[ops.Operation]]:
    """A few dozen operations that feed each other, in one type; every value is a result at the end by way of the last ones."""
    ty = draw(st.sampled_from(["i32", "i16", "i64", "float", "half"]))
    values = ["%a", "%b", "%c"]
    lines = []
    if ty[0] == "i":
        choices = ["add", "sub", "mul", "and", "or", "xor", "shl", "lshr", "ashr", "select", "min", "const"]
    else:
        choices = ["fadd", "fsub", "fmul", "fneg", "select", "const"] + (["fma"] if ty == "float" else [])
    for k in range(draw(st.integers(5, 40))):
        op = draw(st.sampled_from(choices))
        x, y, z = (draw(st.sampled_from(values[-8:])) for _ in range(3))
        name = f"%v{k}"
        if op in ("shl", "lshr", "ashr"):
            lines.append(f"  %m{k} = and {ty} {y}, {ops.BITS[ty] - 1}\n  {name} = {op} {ty} {x}, %m{k}")
        elif op == "select":
            compare_with = "icmp slt" if ty[0] == "i" else "fcmp olt"
            lines.append(f"  %c{k} = {compare_with} {ty} {x}, {y}\n  {name} = select i1 %c{k}, {ty} {y}, {ty} {z}")
        elif op == "min":
            lines.append(f"  {name} = call {ty} @llvm.umin.{ty}({ty} {x}, {ty} {y})")
        elif op == "fma":
            lines.append(f"  {name} = call float @llvm.fma.f32(float {x}, float {y}, float {z})")
        elif op == "fneg":
            lines.append(f"  {name} = fneg {ty} {x}")
        elif op == "const":
            value = draw(st.integers(-70, 70))
            lines.append(f"  {name} = {'add' if ty[0] == 'i' else 'fadd'} {ty} {x}, {value if ty[0] == 'i' else f'{value}.0'}")
        else:
            lines.append(f"  {name} = {op} {ty} {x}, {y}")
        values.append(name)
    last = f"  %r = {'xor' if ty[0] == 'i' else 'fadd'} {ty} {values[-1]}, {values[-2]}"
    return ty, [("program", ty, "\n".join([*lines, last]))]


@settings(max_examples=25, deadline=None, derandomize=True)
@given(straight_line())
def test_random_programs(case: tuple[str, list[ops.Operation]]) -> None:
    ty, operations = case
    inputs = ops.raw_inputs(ty, 3, seed=17)
    compare(ops.function([ty] * 3, operations), inputs)


def test_the_judge_notices_a_wrong_instruction(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these mistakes is small; none passes."""
    mistakes = {
        "v_add_f32": valu.Sem(lambda c, x, y: x - y, True),
        "v_mul_f32": valu.Sem(lambda c, x, y: c.env.fma(x, y, x * 0.0), True),  # -0 becomes +0
        "v_fma_f32": valu.Sem(lambda c, x, y, z: x * y + z, True),  # two roundings
    }
    function = ops.function(["float"] * 3, [o for o in ops.float_operations("float") if o[0] in ("fadd", "fmul", "fma")])
    inputs = ops.raw_inputs("float", 3, seed=18)
    for name, wrong in mistakes.items():
        with monkeypatch.context() as patch:
            patch.setitem(valu.TABLE, name, wrong)
            for partner in ("v_fmac_f32",) if name == "v_fma_f32" else ():
                patch.setitem(valu.TABLE, partner, valu.Sem(lambda c, x, y: x * y + c.old_dst(), True))
            patch.setattr(program, "_programs", {})
            with pytest.raises(AssertionError, match="executor"):
                compare(function, inputs)
