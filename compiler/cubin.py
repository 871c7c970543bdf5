"""Cubins as CuPy hands them over, made whole again, and digests of them.

CuPy's `getCUBIN` strips a trailing NUL that a cubin doesn't have, so that its last byte is lost. The driver
loads such a file nevertheless, but `nvdisasm` and `cuobjdump` call it an invalid ELF.
"""

from __future__ import annotations

import hashlib
import struct

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_PROGRAM_HEADER = struct.Struct("<IIQQQQQQ")
_SECTION_HEADER = struct.Struct("<IIQQQQIIQQ")
_SYMBOLS, _STRINGS = 2, 3
"""Types of the symbol table and of tables of names."""
_NOBITS = 8
"""Type of a section that takes no room in the file."""


class CubinInvalid(ValueError):
    """The bytes aren't an ELF file, or one that lacks more than its last byte."""


def repair(data: bytes) -> bytes:
    """The cubin with the zero byte that CuPy stripped; a whole cubin is returned as it is.

    Raises:
        CubinInvalid: not a 64-bit little-endian ELF, or more than its last byte is missing.
    """
    if len(data) < _HEADER.size or not is_cubin(data):
        raise CubinInvalid(
            f"NVRTC's output of {len(data)} bytes doesn't start as a 64-bit ELF file, so it isn't a cubin."
        )
    whole = data + b"\0"
    end = _end(whole)
    if end > len(whole):
        raise CubinInvalid(
            f"The cubin is {len(data)} bytes long but its ELF headers reach to byte {end}; it was cut short."
        )
    return whole if end == len(whole) else data


def _end(data: bytes) -> int:
    """End of the last part that the ELF headers list, in bytes from the start of the file."""
    (_, _, _, _, _, segments_at, sections_at, _, size, segment_size, segments, section_size, sections, _) = (
        _HEADER.unpack_from(data)
    )
    end: int = max(size, segments_at + segments * segment_size, sections_at + sections * section_size)
    if end > len(data):
        return end
    for index in range(segments):
        _, _, offset, _, _, file_size, _, _ = _PROGRAM_HEADER.unpack_from(
            data, segments_at + index * segment_size
        )
        end = max(end, offset + file_size)
    for index in range(sections):
        _, kind, _, _, offset, file_size, *_ = _SECTION_HEADER.unpack_from(
            data, sections_at + index * section_size
        )
        if kind != _NOBITS:
            end = max(end, offset + file_size)
    return end


def is_cubin(data: bytes) -> bool:
    """Whether the bytes start as a 64-bit ELF file; PTX doesn't."""
    return data[:6] == b"\x7fELF\x02\x01"


def machine_code_digest(cubin: bytes) -> str:
    """SHA-256 of what a cubin makes a GPU do: code, constants, shared memory and resources, not line information.

    Left out are the sections for debuggers, which hold lines, file names and PTX text, and the names in the symbol
    table, into which NVRTC mixes digests of text and file name. Kernels are named by their sections.

    Raises:
        CubinInvalid: not a 64-bit little-endian ELF.
    """
    elf = _Elf(cubin)
    total = hashlib.sha256(struct.pack("<I", elf.flags))
    for index, (_, kind, section_flags, _, _, length, link, info, alignment, _) in enumerate(elf.sections):
        name = elf.names[index]
        if b"debug" in name or kind == _STRINGS:
            continue
        content = elf.content(index)
        if kind == _SYMBOLS:
            content = b"".join(content[at + 4 : at + 24] for at in range(0, length, 24))
        total.update(name + struct.pack("<IQQIIQ", kind, section_flags, length, link, info, alignment))
        total.update(hashlib.sha256(content).digest())
    return total.hexdigest()


def kernel_code_digest(cubin: bytes) -> str:
    """SHA-256 of the kernels of a cubin alone: instructions, their constants, shared memory and resources.

    Data at namespace scope is left out: NVRTC keeps constants that no kernel reads. So equal digests prove equal code
    only where `references_data` is false and no instruction reads constant bank 4, which holds its addresses.

    Raises:
        CubinInvalid: not a 64-bit little-endian ELF.
    """
    elf = _Elf(cubin)
    total = hashlib.sha256(struct.pack("<I", elf.flags))
    for name, index in sorted((name, index) for index, name in enumerate(elf.names)):
        if name.startswith(_KERNEL_SECTIONS):
            content = elf.content(index) + struct.pack("<Q", elf.sections[index][5])
        elif name.startswith(b".nv.info"):
            content = b"".join(sorted(_attributes(elf, elf.content(index))))
        elif name.startswith(_RELOCATIONS):
            content = b"".join(sorted(_relocations(elf, elf.content(index))))
        else:
            continue
        total.update(name + hashlib.sha256(content).digest())
    return total.hexdigest()


def references_data(cubin: bytes) -> bool:
    """Whether an instruction is relocated to data at namespace scope.

    Raises:
        CubinInvalid: not a 64-bit little-endian ELF.
    """
    elf = _Elf(cubin)
    entries = (
        entry
        for index, name in enumerate(elf.names)
        if name.startswith(_RELOCATIONS)
        for entry in _relocations(elf, elf.content(index))
    )
    return any(b".nv.global" in entry or b".nv.constant4" in entry for entry in entries)


_KERNEL_SECTIONS = (b".text.", b".nv.constant0", b".nv.constant2", b".nv.constant3", b".nv.shared")
_RELOCATIONS = (b".rel.text.", b".rela.text.")
_BY_SYMBOL = frozenset({0x0A, 0x11, 0x12, 0x23, 0x2F})
"""Attributes of .nv.info whose value begins with the index of a symbol: constant bank, stack sizes, registers."""


class _Elf:
    """Sections and symbols of a cubin."""

    def __init__(self, data: bytes) -> None:
        if not is_cubin(data) or len(data) < _HEADER.size:
            raise CubinInvalid(f"{len(data)} bytes that don't start as a 64-bit ELF file aren't a cubin.")
        header = _HEADER.unpack_from(data)
        at, size, count, names_at = header[6], header[11], header[12], header[13]
        self.data, self.flags = data, header[7]
        """`flags` state the architecture."""
        self.sections = [_SECTION_HEADER.unpack_from(data, at + index * size) for index in range(count)]
        names = self.sections[names_at][4]
        self.names = [data[names + s[0] : data.index(b"\0", names + s[0])] for s in self.sections]

    def content(self, index: int) -> bytes:
        """The bytes of a section; empty where it takes no room in the file."""
        _, kind, _, _, offset, length, *_ = self.sections[index]
        return b"" if kind == _NOBITS else self.data[offset : offset + length]

    def symbol(self, number: int) -> bytes:
        """What a symbol stands for: section, value and size; its name may hold a digest of the text."""
        table = next(index for index, section in enumerate(self.sections) if section[1] == _SYMBOLS)
        entry = self.content(table)[24 * number : 24 * number + 24]
        name_at, _, _, section, value, size = struct.unpack("<IBBHQQ", entry)
        if section == 0 or section >= len(self.names):  # defined elsewhere: known by its name alone
            strings = self.content(self.sections[table][6])
            return bytes(strings[name_at : strings.index(b"\0", name_at)])
        where: bytes = self.names[section]
        return where + struct.pack("<QQ", value, size)


def _attributes(elf: _Elf, content: bytes) -> list[bytes]:
    """Entries of a section .nv.info, with symbols instead of their indexes."""
    found, at = [], 0
    while at + 4 <= len(content):
        form, attribute, size = struct.unpack_from("<BBH", content, at)
        at += 4
        value = b""
        if form == 4:  # so many bytes follow; else `size` is the value itself
            value = content[at : at + size]
            at += size
            if attribute in _BY_SYMBOL:
                value = elf.symbol(struct.unpack_from("<I", value)[0]) + value[4:]
        found.append(struct.pack("<BBH", form, attribute, 0 if form == 4 else size) + value)
    return found


def _relocations(elf: _Elf, content: bytes) -> list[bytes]:
    """Entries of a section of relocations (24 bytes with addends), with symbols instead of their indexes."""
    found = []
    for at in range(0, len(content), 24):
        offset, kind, number, addend = struct.unpack_from("<QIIq", content, at)
        found.append(struct.pack("<QIq", offset, kind, addend) + elf.symbol(number))
    return found
