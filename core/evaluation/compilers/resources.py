"""What a compiled kernel uses, what the target has, and the finding when the first does not fit into the second.

A limit refuses only what the GPU would refuse at the launch. Spilled registers launch, slowly: they are a note.
Sources: CUDA C++ programming guide, table of technical specifications per compute capability; AMD CDNA3 ISA guide
(512 vector registers a lane, shared by the waves of a SIMD; 64 KiB LDS a workgroup).
"""

import msgspec

from core.evaluation.findings import Finding

SHARED_BYTES = {
    "cuda:70": 98304, "cuda:75": 65536, "cuda:80": 166912, "cuda:86": 101376, "cuda:87": 166912, "cuda:89": 101376,
    "cuda:90": 232448, "cuda:100": 232448, "cuda:103": 232448, "cuda:110": 232448, "cuda:120": 101376,
    "cuda:121": 101376, "hip:gfx908": 65536, "hip:gfx90a": 65536, "hip:gfx942": 65536, "hip:gfx950": 163840,
}  # fmt: skip
"""Shared memory (LDS) that one block may use, the opt-in maximum."""
STATIC_SHARED_BYTES = 49152
"""What a CUDA kernel may declare statically; more must be asked for at the launch."""
REGISTERS_PER_BLOCK = 65536
THREADS_PER_BLOCK = 1024
LOCAL_BYTES_PER_THREAD = 512 * 1024
TENSOR_MEMORY_COLUMNS = 512
_REGISTER_UNIT = 8
_VGPRS_PER_LANE = 512
_SIMDS = 4
_CLUSTER_BLOCKS = 8
"""Blocks of a cluster that every GPU which has clusters takes."""


class KernelResources(msgspec.Struct, frozen=True, kw_only=True):
    """What the assembler says of one kernel; 0 where it says nothing."""

    kernel: str
    line: int = 0
    """Line in the candidate's source."""
    shared_bytes: int = 0
    registers: int = 0
    """A thread's (a lane's vector registers on AMD)."""
    stack_bytes: int = 0
    """A thread's local memory: spilled registers and local arrays."""
    spill_bytes: int = 0
    """A thread's spill stores, as far as the assembler counts them."""
    threads: int = 0
    """A block's; 0 when the launch decides."""
    tensor_memory: int = 0


def exceeded(used: KernelResources, target: str, advice: str = "") -> Finding | None:
    """The first limit of `target` (`cuda:90`) that a kernel does not keep; `advice` names what to make smaller."""
    name = used.kernel
    shared = SHARED_BYTES.get(target, 0)
    if shared and used.shared_bytes > shared:
        text = f"shared memory {used.shared_bytes:,} B > {shared:,} B in {name} on {target}"
        return _finding("shared_memory", text, advice or "Use smaller blocks or fewer stages.", used.line)
    if used.threads > THREADS_PER_BLOCK:
        text = f"{name} has {used.threads:,} threads a block > {THREADS_PER_BLOCK:,} on {target}"
        return _finding("registers", text, "Use fewer warps.", used.line)
    if used.stack_bytes > LOCAL_BYTES_PER_THREAD:
        text = f"local memory {used.stack_bytes:,} B a thread > {LOCAL_BYTES_PER_THREAD:,} B in {name} on {target}"
        return _finding("registers", text, advice or "Use smaller blocks.", used.line)
    if used.tensor_memory > TENSOR_MEMORY_COLUMNS:
        text = f"tensor memory {used.tensor_memory} columns > {TENSOR_MEMORY_COLUMNS} in {name} on {target}"
        return _finding("shared_memory", text, advice or "Use smaller blocks.", used.line)
    if target.startswith("hip"):
        return _vector_registers(used, target, advice)
    rounded = -(-used.registers // _REGISTER_UNIT) * _REGISTER_UNIT
    if rounded * used.threads > REGISTERS_PER_BLOCK:
        text = f"registers {rounded} x {used.threads} threads > {REGISTERS_PER_BLOCK:,} in {name} on {target}"
        return _finding("registers", text, advice or "Use smaller blocks or fewer warps.", used.line)
    return None


def _vector_registers(used: KernelResources, target: str, advice: str) -> Finding | None:
    waves = -(-used.threads // 64)
    limit = _VGPRS_PER_LANE // max(1, -(-waves // _SIMDS))
    if target.startswith("hip:gfx9") and used.registers > limit:
        text = f"vector registers {used.registers} a lane > {limit} with {waves} waves in {used.kernel} on {target}"
        return _finding("registers", text, advice or "Use smaller blocks or fewer warps.", used.line)
    return None


def launch_options(options: dict[str, int | bool | str | None], kernel: str, line: int, target: str) -> Finding | None:
    """What no launch on the target may ask for, whatever the kernel is."""
    lanes = 64 if target.startswith("hip:gfx9") else 32
    warps = options.get("num_warps", 4)
    if not isinstance(warps, int) or warps < 1 or warps & (warps - 1):
        text = f"num_warps = {warps} in {kernel}: wanted a power of 2"
        return _finding("launch_error", text, f"1 to {THREADS_PER_BLOCK // lanes} on {target}.", line)
    if warps * lanes > THREADS_PER_BLOCK:
        text = f"num_warps = {warps} in {kernel}: {warps * lanes:,} threads > {THREADS_PER_BLOCK:,} a block"
        return _finding("launch_error", text, f"Use at most {THREADS_PER_BLOCK // lanes} warps on {target}.", line)
    stages = options.get("num_stages")
    if stages is not None and (not isinstance(stages, int) or stages < 0):
        return _finding("launch_error", f"num_stages = {stages} in {kernel}: wanted 1 or more", "", line)
    blocks = options.get("num_ctas", 1)
    clusters = target.startswith("cuda") and int(target.partition(":")[2]) >= 90
    limit = _CLUSTER_BLOCKS if clusters else 1
    if not isinstance(blocks, int) or blocks < 1 or blocks & (blocks - 1) or blocks > limit:
        text = f"num_ctas = {blocks} in {kernel}: {target} takes {'1, 2, 4 or 8' if clusters else '1'}"
        return _finding("launch_error", text, "", line)
    registers = options.get("maxnreg")
    if registers is not None and (not isinstance(registers, int) or not 16 <= registers <= 255):
        return _finding("launch_error", f"maxnreg = {registers} in {kernel}: wanted 16 to 255", "", line)
    return None


def note(used: KernelResources) -> str:
    """One line on what makes a kernel slow though it launches, or nothing."""
    if used.spill_bytes:
        return f"{used.kernel} spills {used.spill_bytes:,} B of registers a thread ({used.registers} registers)"
    if used.stack_bytes:
        return f"{used.kernel} uses {used.stack_bytes:,} B of local memory a thread ({used.registers} registers)"
    return ""


def _finding(category: str, headline: str, detail: str, line: int) -> Finding:
    return Finding(
        stage="launch" if category == "launch_error" else "compile",
        category=category,
        headline=headline,
        detail=detail,
        line=line,
    )
