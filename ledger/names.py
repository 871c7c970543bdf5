"""What a record's file is called: by what was measured, of which source, where and when."""

from __future__ import annotations

import re

from .record import Record


def record_name(record: Record) -> str:
    """Path of a record below the ledger's folder, with forward slashes.

    `<spec>/<workload>/<candidate>.<arch>-<device>.<12 digits of the text>.<time>.json`; of a part of the
    workload's interval, `<candidate>.<low>to<high>` takes the place of the candidate. The text is the one that was
    measured, so a record keeps its name when its code is proven to be another digest's; where there was no text, the
    digits are those of the code.
    """
    time = record.measured_at.replace("-", "").replace(":", "")
    device = f"{record.device.arch}-{device_slug(record.device.name)}"
    part = "" if record.part is None else f".{record.part.low}to{record.part.high}"
    measured = record.source_sha256 or record.code_sha256
    assert measured is not None, "a record has one of the two, by its version"
    name = f"{record.candidate}{part}.{device}.{measured[:12]}.{time}.json"
    return f"{record.spec}/{record.workload}/{name}"


def device_slug(name: str) -> str:
    """`NVIDIA H200` as `nvidia-h200`; `gpu` for a name without a letter or digit of ASCII."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "gpu"
