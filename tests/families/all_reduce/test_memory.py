"""Where `out` may lie: apart from the inputs, or exactly in one; and on which device tensors must be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from harness.workspaces import load_module
from kernwright.emulator.module import EmulatedCommunicator
from kernwright.families.all_reduce.reference import in_rank_order

SIZES = (33, 200, 700)
"""Elements a rank: one for each route."""


@pytest.fixture(scope="session")
def mini(mini_root: Path) -> Any:
    """The dispatch module of the miniature spec."""
    return load_module("mini_memory", mini_root / "generated" / "dispatch.py")


@pytest.fixture
def comm(mini: Any) -> Any:
    return EmulatedCommunicator(mini.DISPATCH.table, 2)


def at(memory: torch.Tensor, begin: int, numel: int) -> torch.Tensor:
    return memory[begin : begin + 2 * numel].view(2, numel)


def filled(numel: int) -> torch.Tensor:
    """Room for three tensors of two ranks, with values."""
    return (torch.arange(6 * numel) % 13 - 6).to(torch.bfloat16)


def total(tensor: torch.Tensor) -> torch.Tensor:
    return in_rank_order(tensor.unbind(0)).expand_as(tensor)


@pytest.mark.parametrize("numel", SIZES)
def test_out_lies_in_the_input_or_apart(mini: Any, comm: Any, numel: int) -> None:
    size = 2 * numel
    memory = filled(numel)
    tensor = at(memory, size, numel)
    right = total(tensor.clone())
    for begin in (size - 1, size + 1, 1, 2 * size - 1, size + numel):  # one, or all but one, in common
        before = memory.clone()
        with pytest.raises(ValueError, match="out shares memory with the tensor and isn't the same tensor"):
            mini.all_reduce(tensor, comm=comm, out=at(memory, begin, numel))
        assert torch.equal(memory, before)
    for begin in (0, 2 * size):  # adjacent
        assert torch.equal(mini.all_reduce(tensor, comm=comm, out=at(memory, begin, numel)), right)
    alias = at(memory, size, numel)  # the same memory as an object of its own
    assert torch.equal(mini.all_reduce(tensor, comm=comm, out=alias), right)
    assert torch.equal(tensor, right)
    comm.check()


@pytest.mark.parametrize("numel", SIZES)
def test_out_of_a_sum_of_two(mini: Any, comm: Any, numel: int) -> None:
    size = 2 * numel
    for place in (0, 1):
        memory = filled(numel)
        given = [at(memory, 0, numel), at(memory, size, numel)]
        right = total(given[0] + given[1])
        for begin in (size - 1, 1, size + 1, 2 * size - 1):
            with pytest.raises(ValueError, match=r"out shares memory with [ab] and isn't the same tensor"):
                mini.all_reduce_sum2(*given, comm=comm, out=at(memory, begin, numel))
        assert torch.equal(mini.all_reduce_sum2(*given, comm=comm, out=given[place]), right)
    memory = filled(numel)
    a, b = at(memory, 0, numel), at(memory, 1, numel)  # addends may overlap; an output in one of them not
    with pytest.raises(ValueError, match="out shares memory with b and isn't the same"):
        mini.all_reduce_sum2(a, b, comm=comm, out=a)
    right = total(a + b)
    assert torch.equal(mini.all_reduce_sum2(a, b, comm=comm), right)
    right = total(a * 2)
    assert torch.equal(mini.all_reduce_sum2(a, a, comm=comm, out=a), right)


def test_views_of_another_form(mini: Any, comm: Any) -> None:
    square = torch.arange(16, dtype=torch.float32).view(2, 2, 4)
    for tensor, out, sentence in (
        (square, square.view(2, 8), "it must be torch.float32 of shape"),
        (
            square.view(2, 4, 2).transpose(1, 2),
            square,
            "isn't the same tensor",
        ),  # the range, but another order
        (square[:, :, ::2], square.flatten()[1:9].view(2, 2, 2), "isn't the same tensor"),
        (square[:, :, ::2], square.flatten()[14:].new_empty(2, 2, 2), None),
    ):
        if sentence is None:
            assert torch.equal(mini.all_reduce(tensor, comm=comm, out=out), total(tensor))
            continue
        with pytest.raises(ValueError, match=sentence):
            mini.all_reduce(tensor, comm=comm, out=out)
    name = comm.torch_name or mini.DISPATCH.publish(comm)
    one, other = (square.flatten()[begin : begin + 8].view(2, 4) for begin in (0, 1))
    with pytest.raises(ValueError, match="isn't the same tensor"):
        mini.DISPATCH.torch_ops().all_reduce.out(one, comm=name, out=other)


def test_tensors_on_another_device(mini: Any, comm: Any) -> None:
    """Also once a call of that shape is known, and where nothing has to be summed."""
    mini.all_reduce(torch.zeros(2, 8), comm=comm)
    said = "the tensor is on meta, and the ranks of comm work on cpu; pass"
    for shape in ((2, 8), (2, 0)):
        away = torch.zeros(shape, device="meta")
        for options in ({}, {"out": away}):
            with pytest.raises(ValueError, match=said):
                mini.all_reduce(away, comm=comm, **options)
        with pytest.raises(ValueError, match=said):
            mini.all_reduce_sum2(away, away, comm=comm)
        with pytest.raises(ValueError, match=said):
            mini.all_reduce.explain(away, comm=comm)
    with pytest.raises(ValueError, match=r"out is torch.float32 of shape .* on meta"):
        mini.all_reduce(torch.zeros(2, 8), comm=comm, out=torch.zeros(2, 8, device="meta"))
