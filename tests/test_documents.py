"""Documents and the texts that cite them: links, anchors, paths, commands and Python names that exist."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import typer.main
from kernwright import cli

ROOT = Path(__file__).resolve().parents[1]
CODE = (".py", ".j2", ".h", ".cpp", ".cu", ".toml")
"""Endings of files whose comments, docstrings and messages may cite a document."""
ELSEWHERE = ("generated", "build", "dist", "artifacts", "figures", "wheels")
"""Folders that aren't the repository's own text; generated files cite what their templates cite."""
EXAMPLES = ("specs/my_boundary.toml",)
"""Paths of a reader's own workspace."""
BOOKS = ("Order Statistics",)
"""Texts with numbered sections that may be cited; the documents of the repository have headings."""

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CITATION = re.compile(r"(?<![\w/.*-])([\w./-]+\.md)(?:#([\w-]+))?(?!\w)")
BY_HEADING = re.compile(r"\.md[,:]? \(?[A-Z][a-z]+(?= |\)|\.)")
SECTION = re.compile(r"(\S+(?:\s\S+)?)[,\s]\s*sections?\s+\d")
CODE_SPAN = re.compile(r"`([^`\n]+)`")
COMMAND = re.compile(r"(?:^|(?<=[\s(]))kernwright ([^#;&)]+)")
NAME = re.compile(r"\bkernwright((?:\.[A-Za-z_]\w*)+)")


def slug(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
    return re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")


def anchors(text: str) -> set[str]:
    outside = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    return {slug(found) for found in re.findall(r"^#+ (.*)$", outside, re.MULTILINE)}


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")  # some broken spec files aren't UTF-8


def line_of(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def documents(root: Path) -> list[Path]:
    return sorted([*root.glob("*.md"), *(root / "docs").rglob("*.md")])


def sources(root: Path) -> Iterator[Path]:
    for path in sorted(root.rglob("*")):
        parts = path.relative_to(root).parts
        ours = not any(part.startswith(".") or part in ELSEWHERE for part in parts)
        if ours and path.is_file() and (path.suffix in CODE or path.name == "Makefile"):
            yield path


def missing(root: Path, base: Path, name: str, anchor: str | None) -> str | None:
    """What of a citation isn't there: the document, relative to `base`, `root` or `docs`, or the heading."""
    target = next((at for at in (base / name, root / name, root / "docs" / name) if at.is_file()), None)
    if target is None:
        return f"there is no document {name}"
    if anchor and anchor not in anchors(read(target)):
        return f"{name} has no heading #{anchor}"
    return None


def broken_links(root: Path, path: Path) -> Iterator[tuple[int, str]]:
    text = read(path)
    for found in LINK.finditer(text):
        name, _, anchor = found.group(1).partition("#")
        if "://" in name:
            continue
        target = path.parent / name if name else path
        if not target.exists():
            yield line_of(text, found.start()), f"there is no file {name}"
        elif anchor and anchor not in anchors(read(target)):
            yield line_of(text, found.start()), f"{name or path.name} has no heading #{anchor}"


def broken_citations(root: Path, path: Path) -> Iterator[tuple[int, str]]:
    text = read(path)
    for found in CITATION.finditer(text):
        if problem := missing(root, path.parent, *found.groups()):
            yield line_of(text, found.start()), problem
    for found in BY_HEADING.finditer(text):
        yield line_of(text, found.start()), f"{found.group()!r}: cite a heading as document.md#heading"
    for found in SECTION.finditer(text):
        if not found.group(1).rstrip(",").endswith(BOOKS):
            yield line_of(text, found.start()), f"{found.group()!r}: cite a heading as document.md#heading"


def broken_paths(root: Path, path: Path) -> Iterator[tuple[int, str]]:
    """Code spans that begin with a folder of the repository, and don't exist in it."""
    text = read(path)
    for found in CODE_SPAN.finditer(text):
        name = found.group(1)
        if not re.fullmatch(r"[\w.*-]+(/[\w.*-]+)*/?", name) or "/" not in name or name in EXAMPLES:
            continue
        if (root / name.split("/")[0]).is_dir() and not any(root.glob(name.rstrip("/"))):
            yield line_of(text, found.start()), f"there is no {name}"


def commands(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The words after `kernwright` in code spans and a document's indented lines; `a | b` and `a b|c` are several."""
    for number, line in enumerate(read(path).splitlines(), 1):
        indented = path.suffix == ".md" and line.startswith("    ")
        for piece in [line.split(" #")[0]] if indented else CODE_SPAN.findall(line):
            for found in COMMAND.finditer(piece):
                for call in found.group(1).split(" | "):
                    words = call.replace("[", "").replace("]", "").split()
                    for choice in words[-1].split("|") if words else []:
                        yield number, [*words[:-1], choice]


def broken_commands(root: Path, path: Path) -> Iterator[tuple[int, str]]:
    program = typer.main.get_command(cli.app)
    for line, words in commands(path):
        command, rest = program, list(words)
        while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
            inner = command.commands.get(rest[0])
            if inner is None:
                yield line, f"there is no command kernwright {' '.join(words[: len(words) - len(rest) + 1])}"
                break
            command = inner
            del rest[0]
        else:
            known = {
                option
                for parameter in command.params
                for option in (*parameter.opts, *parameter.secondary_opts)
            }
            for word in rest:
                option = word.split("=")[0].rstrip(".,:")
                if option.startswith("-") and option not in {*known, "--help"}:
                    yield line, f"kernwright {command.name} has no option {option}"


def resolves(dotted: str) -> bool:
    """Whether a dotted name is a module, or an attribute of one."""
    parts = dotted.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            if not hasattr(found, part):
                return part in getattr(found, "__annotations__", {})
            found = getattr(found, part)
        return True
    return False


def broken_names(root: Path, path: Path) -> Iterator[tuple[int, str]]:
    """Names `kernwright.x.y`, and what examples import from them."""
    text = read(path)
    for found in NAME.finditer(text):
        dotted = found.group()
        if not dotted.endswith(".toml") and not resolves(dotted):
            yield line_of(text, found.start()), f"{dotted} can't be imported"
    for found in re.finditer(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        for node in ast.walk(ast.parse(found.group(1))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kernwright"):
                for name in node.names:
                    if not resolves(f"{node.module}.{name.name}"):
                        yield line_of(text, found.start()) + node.lineno, f"{node.module} has no {name.name}"


Check = Callable[[Path, Path], Iterator[tuple[int, str]]]
OF_DOCUMENTS: tuple[Check, ...] = (broken_links, broken_paths, broken_commands, broken_names)
OF_CODE: tuple[Check, ...] = (broken_citations,)


def problems(root: Path, paths: list[Path], checks: tuple[Check, ...]) -> list[str]:
    return [
        f"{path.relative_to(root)}:{line}: {problem}"
        for path in paths
        for check in checks
        for line, problem in check(root, path)
    ]


@pytest.mark.parametrize("path", documents(ROOT), ids=lambda path: path.name)
def test_what_a_document_names_exists(path: Path) -> None:
    assert problems(ROOT, [path], OF_DOCUMENTS) == []


def test_what_code_cites_exists() -> None:
    cited = [path for path in sources(ROOT) if path != Path(__file__).resolve()]
    assert len(cited) > 300
    assert problems(ROOT, cited, OF_CODE) == []


def test_commands_in_messages_exist() -> None:
    product = [path for path in sources(ROOT) if path.relative_to(ROOT).parts[0] != "tests"]
    in_code_spans = [path for path in product if "`kernwright " in read(path)]
    assert len(in_code_spans) > 10
    assert problems(ROOT, in_code_spans, (broken_commands,)) == []


@pytest.mark.parametrize(
    ("text", "check", "problem"),
    [
        ("[a](gone.md)", broken_links, "there is no file gone.md"),
        ("[a](docs/there.md#gone)", broken_links, "docs/there.md has no heading #gone"),
        ("[a](#gone)", broken_links, "planted.md has no heading #gone"),
        ("`docs/gone.py`", broken_paths, "there is no docs/gone.py"),
        ("`docs/gone*`", broken_paths, "there is no docs/gone*"),
        ("`kernwright prove`", broken_commands, "there is no command kernwright prove"),
        ("    kernwright ledger burn", broken_commands, "there is no command kernwright ledger burn"),
        ("    python -m kernwright bench --fast", broken_commands, "kernwright bench has no option --fast"),
        ("    kernwright init | prove", broken_commands, "there is no command kernwright prove"),
        ("    kernwright ledger show|burn", broken_commands, "there is no command kernwright ledger burn"),
        ("`kernwright.runtime.gone`", broken_names, "kernwright.runtime.gone can't be imported"),
        (
            "```python\nfrom kernwright.emulator import Gone\n```\n",
            broken_names,
            "kernwright.emulator has no Gone",
        ),
        ('"""As docs/gone.md says."""', broken_citations, "there is no document docs/gone.md"),
        ("# docs/there.md#gone", broken_citations, "docs/there.md has no heading #gone"),
        ("# (docs/there.md, Heading)", broken_citations, "cite a heading as document.md#heading"),
        ("# (docs/there.md section 2)", broken_citations, "cite a heading as document.md#heading"),
        ("# (plan section 6)", broken_citations, "cite a heading as document.md#heading"),
        (
            "# (contract of the family,\n# sections 1 and 2)",
            broken_citations,
            "cite a heading as document.md#heading",
        ),
    ],
)
def test_a_planted_error_is_found(tmp_path: Path, text: str, check: Check, problem: str) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "there.md").write_text("# A heading\n", encoding="utf-8")
    planted = tmp_path / "planted.md"
    planted.write_text(text, encoding="utf-8")
    assert any(problem in found for found in problems(tmp_path, [planted], (check,)))


@pytest.mark.parametrize(
    ("text", "check"),
    [
        ("[a](docs/there.md#a-heading) [b](https://example.org/gone.md)", broken_links),
        ("`docs/there.md` `docs/*.md` `elsewhere/gone.md` `a / b`", broken_paths),
        ("    kernwright verify --on emulator  # kernwright prove", broken_commands),
        ("`kernwright.runtime.device.current`, `kernwright.toml`", broken_names),
        ("# docs/there.md#a-heading; Order Statistics, section 7.1", broken_citations),
    ],
)
def test_what_exists_is_no_problem(tmp_path: Path, text: str, check: Check) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "there.md").write_text("# A heading\n", encoding="utf-8")
    planted = tmp_path / "planted.md"
    planted.write_text(text, encoding="utf-8")
    assert problems(tmp_path, [planted], (check,)) == []
