"""What the semantics judge runs: LLVM IR operations per data type, and inputs with every edge value against every other."""

from __future__ import annotations

import numpy as np

from tests.mocks.isa.kernels import Function

Operation = tuple[str, str, str]  # name, result type, IR lines that define %r

INTEGERS = ["i8", "i16", "i32", "i64"]
FLOATS = ["half", "float", "double"]
BITS = {"i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64, "half": 16, "float": 32, "double": 64, "bfloat": 16}
MANTISSA = {"half": 10, "float": 23, "double": 52, "bfloat": 7}
NUMPY = {
    "i1": np.uint8, "i8": np.uint8, "i16": np.uint16, "i32": np.uint32, "i64": np.uint64,
    "half": np.float16, "float": np.float32, "double": np.float64, "bfloat": np.uint16,
}  # fmt: skip
INTRINSIC = {"half": "f16", "float": "f32", "double": "f64", "bfloat": "bf16"}
COUNT = 2048


def integer_edges(bits: int) -> list[int]:
    top = 1 << bits
    small = [0, 1, 2, 3, 5, 7, 8, 10, 15, 16, 100, 127, 128, 255, bits, bits - 1, bits + 1]
    values = [*small, top - 1, top - 2, top - 3, top // 2, top // 2 - 1, top // 2 + 1, 0x55555555, 0xAAAAAAAA]
    return sorted({v % top for v in values})


def float_edges(ty: str) -> list[int]:
    """Bit patterns: zeros, denormals, smallest and largest normals, around one, infinities, quiet NaNs, halves and large integers."""
    bits, mantissa = BITS[ty], MANTISSA[ty]
    bias = (1 << (bits - mantissa - 2)) - 1
    one = bias << mantissa
    infinity = (2 * bias + 1) << mantissa
    positive = [
        0, 1,
        (1 << mantissa) - 1, 1 << (mantissa - 1), 1 << mantissa, (1 << mantissa) + 1, one - 1, one, one + 1, one + (1 << mantissa), one - (1 << mantissa),
        one + (1 << (mantissa - 1)), one + (3 << (mantissa - 1)), one + (mantissa << mantissa), one + ((mantissa + 2) << mantissa),
        infinity - 1, infinity - (1 << mantissa), infinity, infinity + (1 << (mantissa - 1)), one + (5 << mantissa) + 3,
    ]  # fmt: skip
    return [p | s << (bits - 1) for p in positive for s in (0, 1)]


def raw_inputs(ty: str, count: int, seed: int) -> list[np.ndarray]:
    """`count` input arrays of COUNT elements: all pairs of edge values first, then random bits; floats also near each other in size."""
    rng = np.random.default_rng(seed)
    bits = BITS[ty]
    edges = np.array(integer_edges(bits) if ty[0] == "i" else float_edges(ty), dtype=np.uint64)
    pairs = min(len(edges) ** 2, COUNT * 7 // 8)
    arrays = []
    for k in range(count):
        random = rng.integers(0, 1 << 64, COUNT, dtype=np.uint64, endpoint=False) >> np.uint64(64 - bits)
        if ty[0] != "i":  # exponents around one in half of the random part
            mantissa = MANTISSA[ty]
            bias = (1 << (bits - mantissa - 2)) - 1
            near = (rng.integers(bias - 8, bias + 9, COUNT).astype(np.uint64) << np.uint64(mantissa)) | (random & np.uint64((1 << mantissa) - 1 | 1 << (bits - 1)))
            random = np.where(np.arange(COUNT) % 2 == 0, near, random)
        order = np.arange(len(edges) ** 2) if len(edges) ** 2 <= pairs else rng.permutation(len(edges) ** 2)[:pairs]
        first = edges[order // len(edges)] if k == 0 else edges[order % len(edges)] if k == 1 else rng.choice(edges, pairs)
        random[:pairs] = first[:pairs]
        arrays.append(random)
    if count > 1 and len(edges) ** 2 > pairs:  # the same permutation for both sides, so that pairs stay pairs
        order = rng.permutation(len(edges) ** 2)[:pairs]
        arrays[0][:pairs], arrays[1][:pairs] = edges[order // len(edges)], edges[order % len(edges)]
    dtype = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}[max(bits, 8)]
    return [a.astype(dtype) for a in arrays]


def call(name: str, ty: str, *args: str) -> str:
    return f"  %r = call {ty} @{name}({', '.join(args)})"


def integer_operations(ty: str) -> list[Operation]:
    bits = BITS[ty]
    ops: list[Operation] = [(op, ty, f"  %r = {op} {ty} %a, %b") for op in ("add", "sub", "mul", "and", "or", "xor")]
    ops += [(op, ty, f"  %m = and {ty} %b, {bits - 1}\n  %r = {op} {ty} %a, %m") for op in ("shl", "lshr", "ashr")]
    guard = f"  %z = icmp eq {ty} %b, 0\n  %d = select i1 %z, {ty} 1, {ty} %b\n"
    ops += [(op, ty, guard + f"  %r = {op} {ty} %a, %d") for op in ("udiv", "urem")]
    low = -(1 << (bits - 1))
    signed = guard + f"  %n = icmp eq {ty} %d, -1\n  %m = icmp eq {ty} %a, {low}\n  %w = and i1 %n, %m\n  %e = select i1 %w, {ty} 2, {ty} %d\n"
    ops += [(op, ty, signed + f"  %r = {op} {ty} %a, %e") for op in ("sdiv", "srem")]
    for name in ("smin", "smax", "umin", "umax", "sadd.sat", "ssub.sat", "uadd.sat", "usub.sat"):
        ops.append((name, ty, call(f"llvm.{name}.{ty}", ty, f"{ty} %a", f"{ty} %b")))
    ops.append(("ctpop", ty, call(f"llvm.ctpop.{ty}", ty, f"{ty} %a")))
    ops.append(("bitreverse", ty, call(f"llvm.bitreverse.{ty}", ty, f"{ty} %a")))
    ops += [(name, ty, call(f"llvm.{name}.{ty}", ty, f"{ty} %a", "i1 false")) for name in ("ctlz", "cttz", "abs")]
    if bits > 8:
        ops.append(("bswap", ty, call(f"llvm.bswap.{ty}", ty, f"{ty} %a")))
    ops.append(("fshl", ty, call(f"llvm.fshl.{ty}", ty, f"{ty} %a", f"{ty} %b", f"{ty} {bits // 2 - 1}")))
    ops.append(("bitfield", ty, f"  %s = lshr {ty} %a, {bits // 4}\n  %r = and {ty} %s, {(1 << (bits // 3)) - 1}"))
    ops.append(("multiply-add", ty, f"  %p = mul {ty} %a, %b\n  %r = add {ty} %p, %a"))
    return ops


def integer_compares(ty: str) -> list[Operation]:
    ops: list[Operation] = [(rel, "i1", f"  %r = icmp {rel} {ty} %a, %b") for rel in ("eq", "ne", "ult", "ule", "ugt", "uge", "slt", "sle", "sgt", "sge")]
    ops.append(("select", ty, f"  %c = icmp slt {ty} %a, %b\n  %r = select i1 %c, {ty} %a, {ty} %b"))
    return ops


def float_operations(ty: str) -> list[Operation]:
    """Correctly rounded on both sides."""
    suffix = INTRINSIC[ty]
    ops: list[Operation] = [(op, ty, f"  %r = {op} {ty} %a, %b") for op in ("fadd", "fsub", "fmul", "fdiv")]
    ops.append(("fneg", ty, f"  %r = fneg {ty} %a"))
    for name in ("fabs", "floor", "ceil", "trunc", "rint", "roundeven", "sqrt"):
        ops.append((name, ty, call(f"llvm.{name}.{suffix}", ty, f"{ty} %a")))
    ops.append(("copysign", ty, call(f"llvm.copysign.{suffix}", ty, f"{ty} %a", f"{ty} %b")))
    if ty != "half":  # this host's compiler has no correctly rounded f16 fma; it is judged against exact arithmetic
        ops.append(("fma", ty, call(f"llvm.fma.{suffix}", ty, f"{ty} %a", f"{ty} %b", f"{ty} %c")))
    return ops


def float_selections(ty: str) -> list[Operation]:
    """Minimum and maximum: which zero is returned is not specified, NaNs are."""
    suffix = INTRINSIC[ty]
    names = ("minnum", "maxnum", "minimum", "maximum")
    return [(name, ty, call(f"llvm.{name}.{suffix}", ty, f"{ty} %a", f"{ty} %b")) for name in names]


def float_compares(ty: str) -> list[Operation]:
    relations = ("oeq", "ogt", "oge", "olt", "ole", "one", "ord", "ueq", "ugt", "uge", "ult", "ule", "une", "uno")
    ops: list[Operation] = [(rel, "i1", f"  %r = fcmp {rel} {ty} %a, %b") for rel in relations]
    return [*ops, ("select", ty, f"  %c = fcmp olt {ty} %a, %b\n  %r = select i1 %c, {ty} %b, {ty} %a")]


def class_tests(ty: str) -> list[Operation]:
    """llvm.is.fpclass with each class alone and a few together."""
    suffix = INTRINSIC[ty]
    masks = [1 << k for k in range(10)] + [0x260, 0x3, 0x207, 0x1F8]
    return [(f"class {m:#x}", "i1", call(f"llvm.is.fpclass.{suffix}", "i1", f"{ty} %a", f"i32 {m}")) for m in masks]


def integer_casts(ty: str) -> list[Operation]:
    """From one integer type to all others and to floats."""
    ops: list[Operation] = []
    for other in INTEGERS:
        if BITS[other] < BITS[ty]:
            ops.append((f"trunc {other}", other, f"  %r = trunc {ty} %a to {other}"))
        elif BITS[other] > BITS[ty]:
            ops += [(f"{op} {other}", other, f"  %r = {op} {ty} %a to {other}") for op in ("zext", "sext")]
    for other in FLOATS:
        if other == "half" and ty == "i64":
            continue  # i64 to f16 goes through a library function on this host
        ops += [(f"{op} {other}", other, f"  %r = {op} {ty} %a to {other}") for op in ("sitofp", "uitofp")]
    ops.append(("to bool", "i1", f"  %r = icmp ne {ty} %a, 0"))
    return ops


def float_casts(ty: str) -> list[Operation]:
    """From one float type to the other floats and to integers with saturation."""
    ops: list[Operation] = []
    for other in FLOATS:
        if (ty, other) == ("double", "half"):
            continue  # a library function on this host; judged against numpy
        if BITS[other] < BITS[ty]:
            ops.append((f"fptrunc {other}", other, f"  %r = fptrunc {ty} %a to {other}"))
        elif BITS[other] > BITS[ty]:
            ops.append((f"fpext {other}", other, f"  %r = fpext {ty} %a to {other}"))
    for other in INTEGERS:
        for sign in "su":
            ops.append((f"fpto{sign}i {other}", other, call(f"llvm.fpto{sign}i.sat.{other}.{INTRINSIC[ty]}", other, f"{ty} %a")))
    ops.append(("to bool", "i1", f"  %r = fcmp une {ty} %a, 0.0"))
    return ops


def declarations(ops: list[Operation]) -> str:
    """Declares the intrinsics that the operations call."""
    found: dict[str, str] = {}
    for _, _, body in ops:
        for line in body.splitlines():
            if " call " in line:
                result, _, rest = line.partition(" call ")[2].partition(" @")
                name, _, args = rest.partition("(")
                types = ", ".join(a.strip().rsplit(" ", 1)[0] for a in args.rstrip(")").split(","))
                found[name] = f"declare {result} @{name}({types})"
    return "\n".join(found.values()) + "\n"


def function(inputs: list[str], ops: list[Operation]) -> Function:
    return Function(inputs, ops, declarations(ops))
