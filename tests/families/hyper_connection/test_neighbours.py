"""Whether a neighbour and a boundary fit an SM: arithmetic on attributes, and a sentence for what doesn't."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from kernwright.families.hyper_connection import neighbours
from kernwright.families.hyper_connection.neighbours import (
    Footprint,
    Multiprocessor,
    address_of,
    fits,
    share_sm,
)

H200 = Multiprocessor(
    count=132, shared_bytes=228 * 1024, reserved_bytes=1024, registers=65536, threads=2048, ctas=32
)
BOUNDARY = Footprint("boundary", ctas=132, threads=384, registers=80, shared_bytes=109_696, carveout=100)
ATTENTION = Footprint("attention", ctas=132, threads=256, registers=64, shared_bytes=100_000, carveout=100)


def test_both_fit() -> None:
    found = fits(BOUNDARY, ATTENTION, H200)
    assert found
    assert str(found) == "Both fit an SM at the same time."


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"shared_bytes": 122_000},
            "An SM has 233472 bytes of shared memory: boundary needs 110720, and one CTA of attention takes 123136; "
            "let it take at most 122752.",
        ),
        (
            {"ctas": 264, "shared_bytes": 61_000},
            "An SM has 233472 bytes of shared memory: boundary needs 110720, and 2 CTAs of attention take 124160; "
            "let it take at most 122752.",
        ),
        (
            {"threads": 512, "registers": 72},
            "An SM has 65536 registers: boundary needs 30720, and one CTA of attention takes 36864; let it take at "
            "most 34816.",
        ),
        (
            {"ctas": 10_000, "threads": 256, "registers": 16, "shared_bytes": 0},
            "An SM has 2048 threads: boundary needs 384, and 8 CTAs of attention take 2048; let it take at "
            "most 1664.",
        ),
        (
            {"carveout": -1},
            "The preferred shared-memory carveout of attention is left to the driver, that of boundary is 100%: an "
            "SM drains before it changes; call share_sm on the kernel once.",
        ),
        (
            {"carveout": 50},
            "The preferred shared-memory carveout of attention is 50%, that of boundary is 100%",
        ),
    ],
)
def test_what_is_in_the_way(change: dict[str, int], sentence: str) -> None:
    found = fits(BOUNDARY, replace(ATTENTION, **change), H200)
    assert not found
    assert str(found).startswith(sentence)
    if "ctas" not in change or change["ctas"] == 264:
        assert len(found.obstacles) == 1


def test_a_small_grid_leaves_sms_free() -> None:
    """The fullest SM counts: CTAs are spread before two of them share one."""
    many = replace(ATTENTION, ctas=133, shared_bytes=60_000)
    assert many.on_an_sm(H200) == 2
    assert replace(many, ctas=132).on_an_sm(H200) == 1
    assert replace(many, ctas=10_000, shared_bytes=30_000).on_an_sm(H200) == 4  # what its registers allow
    assert Footprint("f", 10_000, 32, 16, 0).on_an_sm(H200) == 32


def test_registers_are_given_to_four_warps_at_a_time() -> None:
    assert Footprint("f", 1, 384, 80, 0).cta_registers() == 12 * 2560
    assert Footprint("f", 1, 33, 33, 0).cta_registers() == 4 * 1280


def test_attributes_are_the_drivers(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, ...]] = []
    attributes = {1: 2176, 4: 80, 9: -1}

    def get(attribute: int, pointer: int) -> int:
        asked.append((attribute, pointer))
        return attributes[attribute]

    driver: Any = ModuleType("cupy_backends.cuda.api.driver")
    driver.funcGetAttribute = get
    driver.funcSetAttribute = lambda pointer, attribute, value: asked.append((pointer, attribute, value))
    api: Any = ModuleType("cupy_backends.cuda.api")
    api.driver = driver
    monkeypatch.setitem(sys.modules, "cupy_backends.cuda.api", api)
    function = SimpleNamespace(ptr=77, name="mine")
    found = Footprint.of(SimpleNamespace(kernel=function, name="mine"), 132, 384, 107_520)
    assert found == Footprint("mine", 132, 384, 80, 109_696, -1)
    assert {pointer for _, pointer in asked} == {77}
    asked.clear()
    share_sm(function)
    assert asked == [(77, 9, 100)]


def test_only_kernels_have_addresses() -> None:
    assert address_of(5) == 5
    with pytest.raises(ValueError, match="is no kernel that the driver knows; pass CuPy's function"):
        address_of("attention")


def test_a_plan_with_ordinary_edges_is_refused(make: ModuleType) -> None:
    plan: Any = SimpleNamespace(candidate=make.candidate("control"), kind="boundary", device=0)
    with pytest.raises(ValueError, match="combine_norm_control of candidate control isn't launched programm"):
        neighbours.coresidency(plan, ATTENTION)


def test_the_emulators_plan_is_refused(make: ModuleType) -> None:
    found = make.candidate("control")
    kernels = {name: replace(kernel, programmatic=True) for name, kernel in found.kernels.items()}
    plan: Any = SimpleNamespace(candidate=replace(found, kernels=kernels), kind="boundary", device=None)
    with pytest.raises(ValueError, match="the plan of control is the emulator's, which has no SMs"):
        neighbours.coresidency(plan, ATTENTION)
