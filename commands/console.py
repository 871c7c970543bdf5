"""What the commands print: tables and progress for users, JSON for programs. The one place that prints."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any


def print_json(data: object) -> None:
    sys.stdout.write(json.dumps(data, indent=2, default=str) + "\n")


def say(text: str) -> None:
    sys.stdout.write(text + "\n")


def complain(text: str) -> None:
    sys.stderr.write(text + "\n")


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """A table for users; numbers are right-aligned. Piped output is never cut to a terminal's width."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title), title_justify="left", header_style="bold")
    for index, column in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[index], int | float) for row in rows)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))  # not markup: `[cuda12]` is text
    console = Console()
    if not console.is_terminal:
        console.width = 200
    console.print(table)


def print_bars(title: str, values: Mapping[str, float], unit: str = "ms") -> None:
    """A bar chart, in the order given; each line says its value and its ratio to the smallest."""
    from rich.bar import Bar
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    if not values:
        return
    least, most = min(values.values()), max(values.values())
    table = Table(title=Text(title), title_justify="left", box=None, header_style="bold")
    for column, justify in (("", "left"), (unit, "right"), ("x least", "right"), ("", "left")):
        table.add_column(column, justify=justify)  # type: ignore[arg-type]
    for name, value in values.items():
        table.add_row(Text(name), f"{value:.4f}", f"{value / least:.2f}", Bar(most, 0, value, width=40))
    Console().print(table)


@contextmanager
def progress(task: str, total: int, *, quiet: bool) -> Iterator[Callable[[], None]]:
    """A progress bar on standard error; gives the function that advances it by one."""
    if quiet or not sys.stderr.isatty() or not total:
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        handle = bar.add_task(task, total=total)
        yield lambda: bar.advance(handle)
