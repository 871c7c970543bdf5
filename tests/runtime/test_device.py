"""Which build serves which device."""

import pytest
import torch
from kernwright.runtime.device import CPU, Device, current, fake, serves
from kernwright.table import DeviceKind

BUILDS = ("sm_70", "sm_75", "sm_80", "sm_90")


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        ("sm_61", None),
        ("sm_70", "sm_70"),
        ("sm_72", "sm_70"),
        ("sm_75", "sm_75"),
        ("sm_80", "sm_80"),
        ("sm_86", "sm_80"),
        ("sm_89", "sm_80"),
        ("sm_90", "sm_90"),
        ("sm_100", None),
        ("sm_120", None),
    ],
)
def test_exact_else_same_major_with_the_highest_lower_minor(device: str, expected: str | None) -> None:
    assert serves(BUILDS, device) == expected


@pytest.mark.parametrize(
    ("builds", "device", "expected"),
    [
        (("sm_80", "sm_86"), "sm_89", "sm_86"),
        (("sm_86",), "sm_80", None),
        (("sm_90a",), "sm_90", "sm_90a"),
        (("sm_90", "sm_90a"), "sm_90", "sm_90a"),
        (("sm_100a",), "sm_103", None),
        (("sm_100a",), "sm_100", "sm_100a"),
        (("sm_70",), None, None),
    ],
)
def test_variants_match_exactly(builds: tuple[str, ...], device: str | None, expected: str | None) -> None:
    assert serves(builds, device) == expected


def test_a_faked_device_is_described_as_far_as_it_is_known() -> None:
    assert str(fake("sm_90a")) == "sm_90"
    assert str(fake("sm_90", 132, "NVIDIA H200")) == "sm_90, 132 SMs, NVIDIA H200"
    assert fake("sm_90", 132, "NVIDIA H200").kind == DeviceKind("sm_90", 132, "NVIDIA H200")
    assert fake("sm_90").kind is None
    assert fake(None) == CPU
    assert str(Device(None, name="mps")) == "mps"


def test_a_mistyped_architecture_is_a_sentence() -> None:
    with pytest.raises(ValueError, match="the architecture is 'sm-90'; it is written like sm_70 or sm_90"):
        fake("sm-90")


def test_a_cpu_tensor_is_on_a_device_without_an_architecture() -> None:
    assert current(torch.device("cpu")) == CPU
    assert current(torch.device("meta")).arch is None
