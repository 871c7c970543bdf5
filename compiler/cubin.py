"""Cubins as CuPy hands them over, made whole again.

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
    if not is_cubin(cubin) or len(cubin) < _HEADER.size:
        raise CubinInvalid(f"{len(cubin)} bytes that don't start as a 64-bit ELF file aren't a cubin.")
    header = _HEADER.unpack_from(cubin)
    sections_at, flags, size, count, names_at = header[6], header[7], header[11], header[12], header[13]
    sections = [_SECTION_HEADER.unpack_from(cubin, sections_at + index * size) for index in range(count)]
    names = sections[names_at][4]
    total = hashlib.sha256(struct.pack("<I", flags))  # the architecture
    for name_at, kind, section_flags, _, offset, length, link, info, alignment, _ in sections:
        begin = names + name_at
        name = cubin[begin : cubin.index(b"\0", begin)]
        if b"debug" in name or kind == _STRINGS:
            continue
        content = b"" if kind == _NOBITS else cubin[offset : offset + length]
        if kind == _SYMBOLS:
            content = b"".join(content[at + 4 : at + 24] for at in range(0, length, 24))
        total.update(name + struct.pack("<IQQIIQ", kind, section_flags, length, link, info, alignment))
        total.update(hashlib.sha256(content).digest())
    return total.hexdigest()
