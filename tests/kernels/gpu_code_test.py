#!/usr/bin/env python3
"""What nvcc made of the kernels:  gpu_code_test.py LIBRARY.a...

- No kernel keeps anything on a stack, which would be a spilled register or an array in the GPU's slow memory.
- Batch normalisation in bf16, eight channels a thread, reads and writes tensors 16 bytes at a time.
- The kernel that tells the host of a finished bucket has a fence of system scope before its mark.

Reads the GPU's programs (cubins: ELF files in the section .nv_fatbin) by itself, since not every toolkit brings
cuobjdump. Instructions are looked at for sm_80 and sm_90, whose encodings are known here. Needs no GPU.
"""
import struct
import sys
from collections.abc import Iterator

CUBIN, FATBIN = 2, 0xBA55ED50
FRAME_BYTES, LEAST_STACK_BYTES, REGISTERS = 0x11, 0x12, 0x2F  # attributes in .nv.info
# Bits 0-11 of an instruction; of loads and stores bits 73-75 are the width, of fences bits 76-77 the scope.
LOAD, STORE, FENCE = 0x981, 0x986, 0x992
WIDTH_16_BYTES, SCOPE_SYSTEM = 6, 3


def sections(elf: bytes) -> dict[str, bytes]:
    table, (entry, count, names) = struct.unpack_from("<Q", elf, 40)[0], struct.unpack_from("<HHH", elf, 58)
    rows = [struct.unpack_from("<IIQQQQ", elf, table + i * entry) for i in range(count)]
    text = rows[names][4]
    return {elf[text + row[0]:elf.index(b"\0", text + row[0])].decode(): elf[row[4]:row[4] + row[5]]
            for row in rows if row[1] not in (0, 8)}  # neither empty nor without bytes in the file


def members(archive: bytes) -> Iterator[bytes]:
    at = 8
    while at < len(archive):
        size = int(archive[at + 48:at + 58])
        yield archive[at + 60:at + 60 + size]
        at += 60 + size + size % 2


def cubins(archive: bytes) -> Iterator[tuple[int, bytes]]:
    """Pairs of an architecture, such as 90, and a program for it."""
    for member in members(archive):
        fat = sections(member).get(".nv_fatbin", b"") if member.startswith(b"\x7fELF") else b""
        at = 0
        while at < len(fat):
            magic, _, head, size = struct.unpack_from("<IHHQ", fat, at)
            assert magic == FATBIN, hex(magic)
            at, end = at + head, at + head + size
            while at < end:
                kind, _, head, size = struct.unpack_from("<HHIQ", fat, at)
                program = fat[at + head:at + head + size]
                if kind == CUBIN:
                    assert program.startswith(b"\x7fELF"), "a compressed cubin: this test cannot read it"
                    yield struct.unpack_from("<I", fat, at + 28)[0], program
                at += head + size


def attributes(parts: dict[str, bytes]) -> Iterator[tuple[str, int, int]]:
    """Of all functions: name, attribute, value."""
    info, symbols, names = parts.get(".nv.info", b""), parts[".symtab"], parts[".strtab"]
    at = 0
    while at < len(info):
        form, attribute, size = struct.unpack_from("<BBH", info, at)
        if form == 4 and size == 8:
            symbol, value = struct.unpack_from("<II", info, at + 4)
            start = struct.unpack_from("<I", symbols, 24 * symbol)[0]
            yield names[start:names.index(b"\0", start)].decode(), attribute, value
        at += 4 + (size if form == 4 else 0)


def instructions(code: bytes) -> Iterator[tuple[int, int]]:
    """Pairs of an operation and the upper 64 bits, from the first one to the last."""
    for low, high in struct.iter_unpack("<QQ", code):
        yield low & 0xFFF, high


def width(high: int) -> int:
    return high >> 9 & 7


kernels: set[tuple[int, str]] = set()
normalising: dict[int, int] = {}  # kernels of batch normalisation and of marks that were found, by architecture
marking: dict[int, int] = {}
failures: set[str] = set()
for path in sys.argv[1:]:
    with open(path, "rb") as file:
        archive = file.read()
    for architecture, program in cubins(archive):
        parts = sections(program)
        for name, attribute, value in attributes(parts):
            if attribute == REGISTERS:
                kernels.add((architecture, name))
            elif attribute in (FRAME_BYTES, LEAST_STACK_BYTES) and value != 0:
                failures.add(f"sm_{architecture}: {name} has {value} bytes of stack")
        if architecture not in (80, 90):
            continue
        for section, code in parts.items():
            name = section.removeprefix(".text.")
            if name == section:
                continue
            run = list(instructions(code))
            operations = [operation for operation, _ in run]
            loads, stores = ([width(high) for operation, high in run if operation == kind] for kind in (LOAD, STORE))
            if "10batch_norm" in name and "_kernelINS_4bf16ELi8E" in name:
                normalising[architecture] = normalising.get(architecture, 0) + 1
                if not loads or any(each != WIDTH_16_BYTES for each in loads):
                    failures.add(f"sm_{architecture}: {name} has loads of other widths than 16 bytes: {loads}")
                # The others store sums of single channels, too.
                if ("normalise" in name or "input_gradient" in name) and set(stores) != {WIDTH_16_BYTES}:
                    failures.add(f"sm_{architecture}: {name} has stores of other widths than 16 bytes: {stores}")
            if "11mark_kernel" in name:
                marking[architecture] = marking.get(architecture, 0) + 1
                before = run[:operations.index(STORE)] if STORE in operations else []
                if not any(operation == FENCE and high >> 12 & 3 == SCOPE_SYSTEM for operation, high in before):
                    failures.add(f"sm_{architecture}: {name} has no fence of system scope before its mark")

assert kernels, "no kernel was found"
looked_at = sorted({architecture for architecture, _ in kernels} & {80, 90})
for architecture in looked_at:
    # One per variant: statistics, 4 of normalise, and the variants of backward.
    assert normalising.get(architecture, 0) >= 10 and marking.get(architecture) == 1, (normalising, marking)
print(f"{len(kernels)} kernels; {sum(normalising.values())} of batch normalisation and {sum(marking.values())} of marks")
for failure in sorted(failures):
    print(f"FAILED {failure}")
sys.exit(len(failures) > 0)
