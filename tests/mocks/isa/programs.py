"""Small GPU programs in LLVM IR that use what element-wise functions do not: LDS, barriers, divergence, atomics, private arrays, matrices."""

from __future__ import annotations

HEADER = """
declare i32 @llvm.amdgcn.workitem.id.x()
declare i32 @llvm.amdgcn.workitem.id.y()
declare i32 @llvm.amdgcn.workitem.id.z()
declare i32 @llvm.amdgcn.workgroup.id.x()
declare i32 @llvm.amdgcn.workgroup.id.y()
declare i32 @llvm.amdgcn.workgroup.id.z()
declare void @llvm.amdgcn.s.barrier()
attributes #0 = {{ nounwind "amdgpu-flat-work-group-size"="{size},{size}" "uniform-work-group-size"="true" {attributes} }}
!llvm.module.flags = !{{!0}}
!0 = !{{i32 1, !"amdhsa_code_object_version", i32 500}}
!1 = !{{}}
"""


def program(body: str, size: int = 256, attributes: str = "") -> str:
    """IR of a module: `body` defines @kernel with attributes #0 and whatever it needs."""
    return body + HEADER.format(size=size, attributes=attributes)


# out[group] = sum of 256 inputs, by a tree in LDS with a barrier at each level
REDUCE = """
@tree = internal unnamed_addr addrspace(3) global [256 x float] poison, align 16
define amdgpu_kernel void @kernel(ptr addrspace(1) noalias %out, ptr addrspace(1) noalias readonly %in) #0 {
entry:
  %t = call i32 @llvm.amdgcn.workitem.id.x()
  %g = call i32 @llvm.amdgcn.workgroup.id.x()
  %start = mul i32 %g, 256
  %i = add i32 %start, %t
  %ix = zext i32 %i to i64
  %p = getelementptr float, ptr addrspace(1) %in, i64 %ix
  %v = load float, ptr addrspace(1) %p
  %mine = getelementptr float, ptr addrspace(3) @tree, i32 %t
  store float %v, ptr addrspace(3) %mine
  br label %level
level:
  %width = phi i32 [ 128, %entry ], [ %half, %joined ]
  fence syncscope("workgroup") release
  call void @llvm.amdgcn.s.barrier()
  fence syncscope("workgroup") acquire
  %active = icmp ult i32 %t, %width
  br i1 %active, label %add, label %joined
add:
  %j = add i32 %t, %width
  %other = getelementptr float, ptr addrspace(3) @tree, i32 %j
  %x = load float, ptr addrspace(3) %mine
  %y = load float, ptr addrspace(3) %other
  %s = fadd float %x, %y
  store float %s, ptr addrspace(3) %mine
  br label %joined
joined:
  %half = lshr i32 %width, 1
  %more = icmp ne i32 %half, 0
  br i1 %more, label %level, label %done
done:
  %first = icmp eq i32 %t, 0
  br i1 %first, label %write, label %exit
write:
  %total = load float, ptr addrspace(3) @tree
  %gx = zext i32 %g to i64
  %q = getelementptr float, ptr addrspace(1) %out, i64 %gx
  store float %total, ptr addrspace(1) %q
  br label %exit
exit:
  ret void
}
"""

# Collatz steps of each input: every lane leaves the loop at its own time
COLLATZ = """
define amdgpu_kernel void @kernel(ptr addrspace(1) noalias %out, ptr addrspace(1) noalias readonly %in) #0 {
entry:
  %t = call i32 @llvm.amdgcn.workitem.id.x()
  %g = call i32 @llvm.amdgcn.workgroup.id.x()
  %start = mul i32 %g, 256
  %i = add i32 %start, %t
  %ix = zext i32 %i to i64
  %p = getelementptr i32, ptr addrspace(1) %in, i64 %ix
  %v = load i32, ptr addrspace(1) %p
  %q = getelementptr i32, ptr addrspace(1) %out, i64 %ix
  br label %loop
loop:
  %n = phi i32 [ %v, %entry ], [ %next, %latch ]
  %steps = phi i32 [ 0, %entry ], [ %more, %latch ]
  %done = icmp ule i32 %n, 1
  br i1 %done, label %exit, label %body
body:
  %bit = and i32 %n, 1
  %odd = icmp ne i32 %bit, 0
  br i1 %odd, label %up, label %down
up:
  %n3 = mul i32 %n, 3
  %n31 = add i32 %n3, 1
  br label %latch
down:
  %n2 = lshr i32 %n, 1
  br label %latch
latch:
  %next = phi i32 [ %n31, %up ], [ %n2, %down ]
  %more = add i32 %steps, 1
  br label %loop
exit:
  store i32 %steps, ptr addrspace(1) %q
  ret void
}
"""

# histogram of bytes by atomics, first in LDS, then in global memory; and a running maximum, swap and compare-and-swap
HISTOGRAM = """
@bins = internal unnamed_addr addrspace(3) global [256 x i32] poison, align 16
define amdgpu_kernel void @kernel(ptr addrspace(1) %out, ptr addrspace(1) noalias readonly %in) #0 {
  %t = call i32 @llvm.amdgcn.workitem.id.x()
  %g = call i32 @llvm.amdgcn.workgroup.id.x()
  %mine = getelementptr i32, ptr addrspace(3) @bins, i32 %t
  store i32 0, ptr addrspace(3) %mine
  fence syncscope("workgroup") release
  call void @llvm.amdgcn.s.barrier()
  fence syncscope("workgroup") acquire
  %start = mul i32 %g, 256
  %i = add i32 %start, %t
  %ix = zext i32 %i to i64
  %p = getelementptr i8, ptr addrspace(1) %in, i64 %ix
  %v = load i8, ptr addrspace(1) %p
  %bin = zext i8 %v to i32
  %place = getelementptr i32, ptr addrspace(3) @bins, i32 %bin
  %old = atomicrmw add ptr addrspace(3) %place, i32 1 syncscope("workgroup") monotonic
  fence syncscope("workgroup") release
  call void @llvm.amdgcn.s.barrier()
  fence syncscope("workgroup") acquire
  %count = load i32, ptr addrspace(3) %mine
  %tx = zext i32 %t to i64
  %q = getelementptr i32, ptr addrspace(1) %out, i64 %tx
  %u0 = atomicrmw add ptr addrspace(1) %q, i32 %count syncscope("agent") monotonic
  %qm = getelementptr i32, ptr addrspace(1) %out, i64 256
  %u1 = atomicrmw umax ptr addrspace(1) %qm, i32 %i syncscope("agent") monotonic
  %qf = getelementptr i32, ptr addrspace(1) %out, i64 257
  %f = uitofp i8 %v to float
  %u2 = atomicrmw fadd ptr addrspace(1) %qf, float %f syncscope("agent") monotonic, !amdgpu.no.fine.grained.memory !1, !amdgpu.no.remote.memory !1
  %q6 = getelementptr i64, ptr addrspace(1) %out, i64 129
  %v6 = zext i8 %v to i64
  %s6 = shl i64 %v6, 30
  %u3 = atomicrmw add ptr addrspace(1) %q6, i64 %s6 syncscope("agent") monotonic
  ret void
}
"""

# each work-item fills a private array with 16 values in an order that depends on data and reads them back in another
PRIVATE = """
define amdgpu_kernel void @kernel(ptr addrspace(1) noalias %out, ptr addrspace(1) noalias readonly %in) #0 {
entry:
  %array = alloca [16 x i32], align 4, addrspace(5)
  %t = call i32 @llvm.amdgcn.workitem.id.x()
  %g = call i32 @llvm.amdgcn.workgroup.id.x()
  %start = mul i32 %g, 256
  %i = add i32 %start, %t
  %ix = zext i32 %i to i64
  %p = getelementptr i32, ptr addrspace(1) %in, i64 %ix
  %v = load i32, ptr addrspace(1) %p
  br label %fill
fill:
  %k = phi i32 [ 0, %entry ], [ %k1, %fill ]
  %kx = xor i32 %k, %v
  %ki = and i32 %kx, 15
  %slot = getelementptr [16 x i32], ptr addrspace(5) %array, i32 0, i32 %ki
  %kk = mul i32 %k, %v
  store volatile i32 %kk, ptr addrspace(5) %slot
  %k1 = add i32 %k, 1
  %c = icmp eq i32 %k1, 16
  br i1 %c, label %read, label %fill
read:
  %j = phi i32 [ 0, %fill ], [ %j1, %read ]
  %sum = phi i32 [ 0, %fill ], [ %sum1, %read ]
  %place = getelementptr [16 x i32], ptr addrspace(5) %array, i32 0, i32 %j
  %x = load volatile i32, ptr addrspace(5) %place
  %m = add i32 %j, 1
  %xm = mul i32 %x, %m
  %sum1 = add i32 %sum, %xm
  %j1 = add i32 %j, 1
  %d = icmp eq i32 %j1, 16
  br i1 %d, label %exit, label %read
exit:
  %q = getelementptr i32, ptr addrspace(1) %out, i64 %ix
  store i32 %sum1, ptr addrspace(1) %q
  ret void
}
"""

# one generic pointer that is into LDS, private memory or global memory depending on the lane
GENERIC = """
@shared = internal unnamed_addr addrspace(3) global [256 x i32] poison, align 16
define amdgpu_kernel void @kernel(ptr addrspace(1) noalias %out, ptr addrspace(1) noalias %in) #0 {
  %mine = alloca i32, align 4, addrspace(5)
  %t = call i32 @llvm.amdgcn.workitem.id.x()
  %tx = zext i32 %t to i64
  %p1 = getelementptr i32, ptr addrspace(1) %in, i64 %tx
  %p3 = getelementptr i32, ptr addrspace(3) @shared, i32 %t
  %t3 = mul i32 %t, 3
  store volatile i32 %t3, ptr addrspace(3) %p3
  %t5 = mul i32 %t, 5
  store volatile i32 %t5, ptr addrspace(5) %mine
  %g1 = addrspacecast ptr addrspace(1) %p1 to ptr
  %g3 = addrspacecast ptr addrspace(3) %p3 to ptr
  %g5 = addrspacecast ptr addrspace(5) %mine to ptr
  %which = urem i32 %t, 3
  %is1 = icmp eq i32 %which, 1
  %is2 = icmp eq i32 %which, 2
  %s1 = select i1 %is1, ptr %g3, ptr %g1
  %s2 = select i1 %is2, ptr %g5, ptr %s1
  %v = load volatile i32, ptr %s2
  %v1 = add i32 %v, 1000
  store volatile i32 %v1, ptr %s2
  %back3 = load volatile i32, ptr addrspace(3) %p3
  %back5 = load volatile i32, ptr addrspace(5) %mine
  %back1 = load volatile i32, ptr addrspace(1) %p1
  %sum0 = add i32 %back1, %back3
  %sum1 = add i32 %sum0, %back5
  %q = getelementptr i32, ptr addrspace(1) %out, i64 %tx
  store i32 %sum1, ptr addrspace(1) %q
  ret void
}
"""

# three-dimensional ids of groups and work-items
IDS = """
define amdgpu_kernel void @kernel(ptr addrspace(1) noalias %out) #0 {
  %x = call i32 @llvm.amdgcn.workitem.id.x()
  %y = call i32 @llvm.amdgcn.workitem.id.y()
  %z = call i32 @llvm.amdgcn.workitem.id.z()
  %gx = call i32 @llvm.amdgcn.workgroup.id.x()
  %gy = call i32 @llvm.amdgcn.workgroup.id.y()
  %gz = call i32 @llvm.amdgcn.workgroup.id.z()
  %a0 = mul i32 %gz, 3
  %a1 = add i32 %a0, %gy
  %a2 = mul i32 %a1, 2
  %group = add i32 %a2, %gx
  %b0 = mul i32 %z, 5
  %b1 = add i32 %b0, %y
  %b2 = mul i32 %b1, 7
  %item = add i32 %b2, %x
  %c0 = mul i32 %group, 105
  %c1 = add i32 %c0, %item
  %i = zext i32 %c1 to i64
  %q = getelementptr i32, ptr addrspace(1) %out, i64 %i
  %v0 = shl i32 %gx, 20
  %v1 = shl i32 %gy, 16
  %v2 = shl i32 %gz, 12
  %v3 = shl i32 %x, 8
  %v4 = shl i32 %y, 4
  %w0 = or i32 %v0, %v1
  %w1 = or i32 %w0, %v2
  %w2 = or i32 %w1, %v3
  %w3 = or i32 %w2, %v4
  %w4 = or i32 %w3, %z
  store i32 %w4, ptr addrspace(1) %q
  ret void
}
"""

# lanes talk to each other: DPP, swizzle, bpermute, readlane, permlanex16, ballot
CROSS = """
declare i32 @llvm.amdgcn.update.dpp.i32(i32, i32, i32 immarg, i32 immarg, i32 immarg, i1 immarg)
declare i32 @llvm.amdgcn.ds.swizzle(i32, i32 immarg)
declare i32 @llvm.amdgcn.ds.bpermute(i32, i32)
declare i32 @llvm.amdgcn.ds.permute(i32, i32)
declare i32 @llvm.amdgcn.readlane.i32(i32, i32)
declare i32 @llvm.amdgcn.permlanex16.i32(i32, i32, i32, i32, i1 immarg, i1 immarg)
declare i32 @llvm.amdgcn.ballot.i32(i1)
declare i32 @llvm.amdgcn.mbcnt.lo(i32, i32)
define amdgpu_kernel void @kernel(ptr addrspace(1) noalias %out, ptr addrspace(1) noalias readonly %in) #0 {
  %t = call i32 @llvm.amdgcn.workitem.id.x()
  %tx = zext i32 %t to i64
  %p = getelementptr i32, ptr addrspace(1) %in, i64 %tx
  %v = load i32, ptr addrspace(1) %p
  %q0 = getelementptr i32, ptr addrspace(1) %out, i64 %tx
  %r0 = call i32 @llvm.amdgcn.update.dpp.i32(i32 -1, i32 %v, i32 273, i32 15, i32 15, i1 false)
  store i32 %r0, ptr addrspace(1) %q0
  %q1 = getelementptr i32, ptr addrspace(1) %q0, i64 32
  %r1 = call i32 @llvm.amdgcn.ds.swizzle(i32 %v, i32 2079)
  store i32 %r1, ptr addrspace(1) %q1
  %q2 = getelementptr i32, ptr addrspace(1) %q0, i64 64
  %a2 = mul i32 %t, 20
  %r2 = call i32 @llvm.amdgcn.ds.bpermute(i32 %a2, i32 %v)
  store i32 %r2, ptr addrspace(1) %q2
  %q3 = getelementptr i32, ptr addrspace(1) %q0, i64 96
  %a3 = mul i32 %t, 28
  %r3 = call i32 @llvm.amdgcn.ds.permute(i32 %a3, i32 %v)
  store i32 %r3, ptr addrspace(1) %q3
  %q4 = getelementptr i32, ptr addrspace(1) %q0, i64 128
  %r4 = call i32 @llvm.amdgcn.readlane.i32(i32 %v, i32 11)
  store i32 %r4, ptr addrspace(1) %q4
  %q5 = getelementptr i32, ptr addrspace(1) %q0, i64 160
  %r5 = call i32 @llvm.amdgcn.permlanex16.i32(i32 %v, i32 %v, i32 1985229328, i32 -19088744, i1 false, i1 false)
  store i32 %r5, ptr addrspace(1) %q5
  %q6 = getelementptr i32, ptr addrspace(1) %q0, i64 192
  %odd = trunc i32 %v to i1
  %r6 = call i32 @llvm.amdgcn.ballot.i32(i1 %odd)
  %c6 = call i32 @llvm.amdgcn.mbcnt.lo(i32 %r6, i32 100)
  store i32 %c6, ptr addrspace(1) %q6
  ret void
}
"""


def matrix_product(kind: str) -> str:
    """C += A B of one 16x16x16 tile. kind: f32_f16, f32_bf16, f16_f16, bf16_bf16, i32_iu8 (both signed), i32_iu4 (A signed)."""
    ab, cd, name, before, after = {
        "f32_f16": ("<16 x half>", "<8 x float>", "wmma.f32.16x16x16.f16.v8f32.v16f16", ("", ""), ""),
        "f32_bf16": ("<16 x i16>", "<8 x float>", "wmma.f32.16x16x16.bf16.v8f32.v16i16", ("", ""), ""),
        "f16_f16": ("<16 x half>", "<16 x half>", "wmma.f16.16x16x16.f16.v16f16.v16f16", ("", ""), ", i1 false"),
        "bf16_bf16": ("<16 x i16>", "<16 x i16>", "wmma.bf16.16x16x16.bf16.v16i16.v16i16", ("", ""), ", i1 true"),
        "i32_iu8": ("<4 x i32>", "<8 x i32>", "wmma.i32.16x16x16.iu8.v8i32.v4i32", ("i1 true, ", "i1 true, "), ", i1 false"),
        "i32_iu4": ("<2 x i32>", "<8 x i32>", "wmma.i32.16x16x16.iu4.v8i32.v2i32", ("i1 true, ", "i1 false, "), ", i1 false"),
    }[kind]
    types = ", ".join(filter(None, ["i1" if before[0] else "", ab, "i1" if before[1] else "", ab, cd, "i1" if after else ""]))
    params = ", ".join(f"ptr addrspace(1) noalias readonly %{p}" for p in "abc")
    return f"""
declare {cd} @llvm.amdgcn.{name}({types})
define amdgpu_kernel void @kernel(ptr addrspace(1) noalias %out, {params}) #0 {{
  %t = call i32 @llvm.amdgcn.workitem.id.x()
  %tx = zext i32 %t to i64
  %pa = getelementptr {ab}, ptr addrspace(1) %a, i64 %tx
  %pb = getelementptr {ab}, ptr addrspace(1) %b, i64 %tx
  %pc = getelementptr {cd}, ptr addrspace(1) %c, i64 %tx
  %po = getelementptr {cd}, ptr addrspace(1) %out, i64 %tx
  %va = load {ab}, ptr addrspace(1) %pa, align 4
  %vb = load {ab}, ptr addrspace(1) %pb, align 4
  %vc = load {cd}, ptr addrspace(1) %pc, align 4
  %r = call {cd} @llvm.amdgcn.{name}({before[0]}{ab} %va, {before[1]}{ab} %vb, {cd} %vc{after})
  store {cd} %r, ptr addrspace(1) %po, align 4
  ret void
}}
"""


# 16 bytes a work-item through LDS and back, transposed within the group: wide loads, LDS rows of 16 bytes, wide stores
WIDE = """
@tile = internal unnamed_addr addrspace(3) global [256 x <4 x i32>] poison, align 16
define amdgpu_kernel void @kernel(ptr addrspace(1) noalias %out, ptr addrspace(1) noalias readonly %in) #0 {
  %t = call i32 @llvm.amdgcn.workitem.id.x()
  %tx = zext i32 %t to i64
  %p = getelementptr <4 x i32>, ptr addrspace(1) %in, i64 %tx
  %v = load <4 x i32>, ptr addrspace(1) %p, align 16
  %mine = getelementptr <4 x i32>, ptr addrspace(3) @tile, i32 %t
  store <4 x i32> %v, ptr addrspace(3) %mine, align 16
  fence syncscope("workgroup") release
  call void @llvm.amdgcn.s.barrier()
  fence syncscope("workgroup") acquire
  %o = xor i32 %t, 255
  %other = getelementptr <4 x i32>, ptr addrspace(3) @tile, i32 %o
  %w = load <4 x i32>, ptr addrspace(3) %other, align 16
  %three = shufflevector <4 x i32> %w, <4 x i32> poison, <3 x i32> <i32 0, i32 1, i32 2>
  %q = getelementptr [3 x i32], ptr addrspace(1) %out, i64 %tx
  store <3 x i32> %three, ptr addrspace(1) %q, align 4
  ret void
}
"""

# a function that is called, not inlined, and called again from a loop
CALLS = """
define internal i32 @step(i32 %x) noinline {
  %a = mul i32 %x, 1664525
  %b = add i32 %a, 1013904223
  %c = lshr i32 %b, 16
  %d = xor i32 %b, %c
  ret i32 %d
}
define amdgpu_kernel void @kernel(ptr addrspace(1) noalias %out) #0 {
entry:
  %t = call i32 @llvm.amdgcn.workitem.id.x()
  br label %loop
loop:
  %k = phi i32 [ 0, %entry ], [ %k1, %loop ]
  %v = phi i32 [ %t, %entry ], [ %w, %loop ]
  %w = call i32 @step(i32 %v)
  %k1 = add i32 %k, 1
  %c = icmp ugt i32 %k1, %t
  br i1 %c, label %exit, label %loop
exit:
  %tx = zext i32 %t to i64
  %q = getelementptr i32, ptr addrspace(1) %out, i64 %tx
  store i32 %w, ptr addrspace(1) %q
  ret void
}
"""

# sums without atomic add: compare-and-swap loops on f32 in LDS and on f64 in global memory
SWAP_LOOPS = """
@sum = internal unnamed_addr addrspace(3) global float poison, align 4
define amdgpu_kernel void @kernel(ptr addrspace(1) %out, ptr addrspace(1) noalias readonly %in) #0 {
entry:
  %t = call i32 @llvm.amdgcn.workitem.id.x()
  %first = icmp eq i32 %t, 0
  br i1 %first, label %clear, label %go
clear:
  store float 0.0, ptr addrspace(3) @sum
  br label %go
go:
  fence syncscope("workgroup") release
  call void @llvm.amdgcn.s.barrier()
  fence syncscope("workgroup") acquire
  %tx = zext i32 %t to i64
  %p = getelementptr float, ptr addrspace(1) %in, i64 %tx
  %v = load float, ptr addrspace(1) %p
  %m = atomicrmw fmax ptr addrspace(3) @sum, float %v syncscope("workgroup") monotonic
  %d = fpext float %v to double
  %q8 = getelementptr double, ptr addrspace(1) %out, i64 1
  %s = atomicrmw fadd ptr addrspace(1) %q8, double %d syncscope("agent") monotonic
  fence syncscope("workgroup") release
  call void @llvm.amdgcn.s.barrier()
  fence syncscope("workgroup") acquire
  br i1 %first, label %write, label %exit
write:
  %total = load float, ptr addrspace(3) @sum
  store float %total, ptr addrspace(1) %out
  br label %exit
exit:
  ret void
}
"""

# 16-bit values that are the same for all work-items come as scalar operands of 16-bit instructions
UNIFORM = """
declare half @llvm.minnum.f16(half, half)
define amdgpu_kernel void @kernel(ptr addrspace(1) noalias %out, ptr addrspace(1) noalias readonly %in, i16 %s, half %h, i32 %w) #0 {
  %t = call i32 @llvm.amdgcn.workitem.id.x()
  %x = zext i32 %t to i64
  %p = getelementptr i16, ptr addrspace(1) %in, i64 %x
  %v = load i16, ptr addrspace(1) %p
  %a = add i16 %v, %s
  %hi = lshr i32 %w, 16
  %hi16 = trunc i32 %hi to i16
  %b = mul i16 %a, %hi16
  %c = sitofp i16 %b to half
  %g = fmul half %c, %h
  %k = fadd half %g, 0xH4123
  %m = call half @llvm.minnum.f16(half %k, half %h)
  %q = getelementptr half, ptr addrspace(1) %out, i64 %x
  store half %m, ptr addrspace(1) %q
  ret void
}
"""
