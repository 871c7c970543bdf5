"""What a record's file is called: by what was measured, of which source, where and when."""

from __future__ import annotations

import re

from .record import Record


def record_name(record: Record) -> str:
    """Path of a record below the ledger's folder, with forward slashes.

    `<spec>/<workload>/<candidate>.<arch>-<device>.<12 digits of the source>.<time>.json`; of a part of the
    workload's interval, `<candidate>.<low>to<high>` takes the place of the candidate.
    """
    time = record.measured_at.replace("-", "").replace(":", "")
    device = f"{record.device.arch}-{device_slug(record.device.name)}"
    part = "" if record.part is None else f".{record.part.low}to{record.part.high}"
    name = f"{record.candidate}{part}.{device}.{record.source_sha256[:12]}.{time}.json"
    return f"{record.spec}/{record.workload}/{name}"


def device_slug(name: str) -> str:
    """`NVIDIA H200` as `nvidia-h200`; `gpu` for a name without a letter or digit of ASCII."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "gpu"
