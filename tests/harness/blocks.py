"""Groups of several blocks, for records to test with."""

from __future__ import annotations

from kernwright.ledger import Group

BLOCKS = 3


def in_blocks(group: Group, groups: int = 3) -> tuple[Group, ...]:
    """The group again and again: `groups` of them in each of three blocks, without any spread."""
    return tuple(group.model_copy(update={"block": block}) for block in range(BLOCKS) for _ in range(groups))
