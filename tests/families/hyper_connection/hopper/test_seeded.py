"""Seeded reciprocal and root equal IEEE arithmetic for every seed within 2 units in the last place, exhaustively.

Mantissas are exhausted; binades stand for others, because scaling by powers of two is exact inside of the ranges. The
binades in which a reciprocal is subnormal are all tested.
"""

from __future__ import annotations

import numpy as np
import pytest
from kernwright.emulator import DeviceBuffer, EmulatedLaunch, compile_text, run
from kernwright.generator.environment import make_environment
from kernwright.specs import families, find_workspace

from .conftest import HERE

ULPS = 2
BIAS, FRACTION = 127, 23


def preludes() -> str:
    workspace = find_workspace()
    environment = make_environment(workspace, families(workspace))
    names = ("arithmetic", "seeded")
    return "\n".join(environment.get_template(f"prelude/{name}.cuh.j2").render() for name in names)


def wrong(kernel: str, exponents: list[int], length: int = 1, text: str | None = None) -> list[int]:
    """Results that differ from IEEE arithmetic, for each binade from 2**exponent on."""
    source = f"{text or preludes()}\nconstexpr int LENGTH = {length};\n{(HERE / 'kernels' / 'seeds.cu').read_text()}"
    first = np.array([(exponent + BIAS) << FRACTION for exponent in exponents], np.uint32)
    counts = DeviceBuffer.output("wrong", first.shape, "uint32")
    launch = EmulatedLaunch(
        compile_text(source, "seeds.cu"),
        kernel,
        (1, 1, 1),
        (len(exponents), 1, 1),
        (DeviceBuffer.input("first", first), counts, np.int32(ULPS)),
    )
    outcome = run([launch], patience=300)
    assert outcome.fault is None
    return [int(count) for count in outcome.arrays[counts]]


@pytest.mark.parametrize("exponent", [0, 24, 125, 126, 127])
def test_reciprocals(exponent):
    assert wrong("reciprocals", [exponent]) == [0]


@pytest.mark.parametrize("exponent", [-100, 0, 125])
def test_inverse_roots(exponent):
    """Of both parities, since a root halves the exponent."""
    assert wrong("inverse_roots", [exponent, exponent + 1]) == [0, 0]


@pytest.mark.parametrize("length", [256, 2560, 7168])
def test_quotients(length):
    assert wrong("quotients", [-84, 0, 127], length) == [0, 0, 0]


@pytest.mark.parametrize(
    ("kernel", "edit"),
    [
        # One correction fewer: the seed's error remains in some results.
        ("reciprocals", ("fmaf(seed, fmaf(-quarter, seed, 1.0f), seed)", "seed")),
        ("reciprocals", ("fmaf(error * 0.25f, decisive(reciprocal, divisor), near)", "near")),
        ("inverse_roots", ("root = fmaf(fmaf(-root, root, v), half, root);", "")),
        (
            "inverse_roots",
            ("return fmaf(fmaf(-root, inverse, 1.0f), decisive(inverse, root), inverse);", "return inverse;"),
        ),
        # A mantissa of ones, between two floats.
        ("reciprocals", ("decisive(reciprocal, divisor)", "reciprocal")),
        ("inverse_roots", ("decisive(inverse, root)", "inverse")),
        ("quotients", ("fmaf(fmaf(-near, static_cast<float>(N), a), INVERSE, near)", "near")),
    ],
)
def test_no_correction_is_idle(kernel, edit):
    text = preludes()
    assert edit[0] in text
    assert sum(wrong(kernel, [0, 1], 2560, text.replace(*edit))) > 0
