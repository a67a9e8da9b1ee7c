"""What NVIDIA's and AMD's assemblers say of kernels: ptxas' verbose text, a cubin's info section, AMD's metadata.

Text and bytes from a candidate's process: parsed as data, never trusted to be well formed.
"""

import re

import msgspec

_ENTRY = re.compile(r"Compiling entry function '([^']*)' for '(sm_\w+)'")
_PROPERTIES = re.compile(r"Function properties for (\S+)")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers(.*)")
_SHARED = re.compile(r"(\d+)(?:\+\d+)? bytes smem")
_TOO_MUCH = re.compile(
    r"function '([^']*)' uses too much shared data \((0x[0-9a-f]+|\d+) bytes, (0x[0-9a-f]+|\d+) max\)"
)
_MANGLED = re.compile(r"_Z(?:N(?:\d+_GLOBAL__N__\w+?)?)?(\d+)(\w+)")


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """One entry function in ptxas' words: bytes and registers a thread, shared bytes a block."""

    entry: str
    registers: int = 0
    shared_bytes: int = 0
    stack_bytes: int = 0
    spill_bytes: int = 0


def usages(text: str) -> list[Usage]:
    """Every entry function in the output of `ptxas -v`."""
    found: list[Usage] = []
    stacks: dict[str, tuple[int, int]] = {}
    entry = about = ""
    for line in text.splitlines():
        if match := _ENTRY.search(line):
            entry = match[1]
        elif match := _PROPERTIES.search(line):
            about = match[1]
        elif match := _STACK.search(line):
            stacks[about] = (int(match[1]), int(match[2]))
        elif (match := _USED.search(line)) and entry:
            shared = _SHARED.search(match[2])
            stack, spill = stacks.get(entry, (0, 0))
            found.append(
                Usage(
                    entry=entry,
                    registers=int(match[1]),
                    shared_bytes=int(shared[1]) if shared else 0,
                    stack_bytes=stack,
                    spill_bytes=spill,
                )
            )
            entry = ""
    return found


def too_much_shared(text: str) -> tuple[str, int, int] | None:
    """Entry function, bytes wanted and bytes there are, from ptxas' refusal of static shared memory."""
    match = _TOO_MUCH.search(text)
    return (match[1], int(match[2], 0), int(match[3], 0)) if match else None


def plain_name(entry: str) -> str:
    """`_Z10add_kernelPKfS0_Pfi` as `add_kernel`; what can't be read stays as it is."""
    name, rest = entry, entry
    while match := _MANGLED.match(rest if rest.startswith("_Z") else "_Z" + rest):
        length, tail = int(match[1]), match[2]
        if length == 0 or length > len(tail):
            break
        name = tail[:length]
        if not (entry.startswith("_ZN") and tail[length : length + 1].isdigit()):
            break
        rest = tail[length:]
    return name


def cubin_numbers(binary: bytes) -> tuple[int, int]:
    """Registers a thread and stack bytes a thread, from the .nv.info entries of a cubin; 0 where absent."""

    def largest(code: int) -> int:
        entries = re.finditer(re.escape(bytes((4, code, 8, 0))) + b"(.{4})(.{4})", binary, re.DOTALL)
        return max((int.from_bytes(entry[2], "little") for entry in entries), default=0)

    return min(largest(0x2F), 255), largest(0x11) % 2**20


def amd_numbers(assembly: str) -> dict[str, int]:
    """Integers of the kernel's metadata in AMD assembly: vgpr_count, agpr_count, vgpr_spill_count,
    private_segment_fixed_size, group_segment_fixed_size, ..."""
    return {match[1]: int(match[2]) for match in re.finditer(r"^\s*-?\s*\.(\w+):\s+(\d+)\s*$", assembly, re.MULTILINE)}
