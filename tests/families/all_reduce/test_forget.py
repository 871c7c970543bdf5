"""Forgetting decisions while other threads call."""

from __future__ import annotations

from typing import Any

from kernwright.families.all_reduce.op import AllReduce, Known
from kernwright.generated.dispatch import DISPATCH


class Comm:
    """A communicator, as far as an op remembers it."""


def test_a_communicator_that_comes_meanwhile_is_no_error() -> None:
    """An error on one rank alone would leave its peers in the next exchange of `warm_up`."""
    op: Any = AllReduce.__new__(AllReduce)
    op.__dict__.update(DISPATCH.operators["all_reduce"].__dict__)
    late, comms = Comm(), [Comm(), Comm()]

    class Resolved(dict[object, Any]):
        def clear(self) -> None:
            super().clear()
            op._of[late] = Known(0)  # what another thread does

    op._of = type(op._of)()
    op._resolved, op._known = {}, {}
    for comm in comms:
        op._of[comm] = Known(0, Resolved(call="decided"))
    op.forget()
    assert [op._of[comm].resolved for comm in comms] == [{}, {}]
