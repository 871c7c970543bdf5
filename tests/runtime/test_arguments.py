"""Which memory outputs may lie in, and where tensors of a communicator's ranks must be."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernwright.runtime.arguments import check_device, check_overlap

ELEMENTS = 40
BASE = torch.zeros(ELEMENTS, dtype=torch.float16)


def refused(out: torch.Tensor, source: torch.Tensor, *in_place: str) -> bool:
    try:
        check_overlap({"target": out}, {"source": source}, {"target": "out"}, in_place)
    except ValueError:
        return True
    return False


@st.composite
def views(draw: Any) -> torch.Tensor:
    """Strided views of `BASE`, of up to two dimensions; also empty ones, and ones whose elements coincide."""
    shape = draw(st.lists(st.integers(0, 4), max_size=2))
    strides = [draw(st.integers(0, 5)) for _ in shape]
    last = sum(max(size - 1, 0) * stride for size, stride in zip(shape, strides, strict=True))
    return BASE.as_strided(shape, strides, draw(st.integers(0, max(ELEMENTS - 1 - last, 0))))


@settings(deadline=None, max_examples=400)
@given(views(), views())
def test_ranges_of_views(out: torch.Tensor, source: torch.Tensor) -> None:
    """Refused exactly where the elements from first to last have one in common; in place where all are the same."""
    indices = torch.arange(ELEMENTS)
    one, other = (
        indices.as_strided(view.shape, view.stride(), view.storage_offset()).flatten().tolist()
        for view in (out, source)
    )
    meet = bool(one and other) and min(one) <= max(other) and min(other) <= max(one)
    assert refused(out, source) == meet
    assert refused(source, out) == meet
    same = out.shape == source.shape and one == other
    assert refused(out, source, "source") == (meet and not same)


def test_the_sentences_say_what_is_allowed() -> None:
    given, called = {"source": BASE[:8]}, {"target": "out"}
    with pytest.raises(ValueError, match=r"^out shares memory with source; give it memory of its own$"):
        check_overlap({"target": BASE[7:15]}, given, called)
    with pytest.raises(
        ValueError, match="isn't the same tensor; give it memory of its own, or source itself"
    ):
        check_overlap({"target": BASE[7:15]}, given, called, ["source"])
    with pytest.raises(ValueError, match="isn't the same tensor"):  # the same bytes as another dtype
        check_overlap({"target": BASE[:8].view(torch.bfloat16)}, given, called, ["source"])


def test_outputs_among_each_other() -> None:
    called = {"x": "out's x", "y": "out's y"}
    check_overlap({"x": BASE[:8], "y": BASE[8:]}, {}, called)
    for other in (BASE[7:], BASE[:8], BASE[2:4]):
        with pytest.raises(ValueError, match="out's x shares memory with y"):
            check_overlap({"x": BASE[:8], "y": other}, {}, called)
    with pytest.raises(ValueError, match="out's x shares memory with y"):  # one tensor twice
        check_overlap(dict.fromkeys(called, BASE), {}, called)


@pytest.mark.parametrize(
    ("tensor", "ranks", "fits"),
    [
        ("cpu", "cpu", True),
        ("cpu", "cpu:0", True),
        ("cuda:1", "cuda:1", True),
        ("cuda:1", "cuda", True),  # of a communicator that isn't ours; ours know the index
        ("cuda:0", "cuda:1", False),
        ("cpu", "cuda:0", False),
        ("meta", "cpu", False),
        ("cpu", None, True),  # it doesn't say
    ],
)
def test_the_device_of_the_ranks(tensor: str, ranks: str | None, fits: bool) -> None:
    told: Any = SimpleNamespace(device=torch.device(tensor))
    comm = SimpleNamespace() if ranks is None else SimpleNamespace(device=torch.device(ranks))
    if fits:
        check_device(told, comm, "x")
    else:
        with pytest.raises(
            ValueError, match=f"x is on {tensor}, and the ranks of comm work on {ranks}; pass"
        ):
            check_device(told, comm, "x")
