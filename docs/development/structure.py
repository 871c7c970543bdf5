"""Measure how the tree is built: what a family needs, names that are defined twice, sizes.

    python docs/development/structure.py              # this checkout
    python docs/development/structure.py FOLDER       # another one, such as a worktree of an older commit
    python docs/development/structure.py --json

A file belongs to a family if a part of its path is named after it. `--also FAMILY=PATH` adds files whose names don't
say so.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import statistics
import subprocess
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

NOT_PRODUCT = ("tests/", "benchmarks/", "examples/", "generated/", "docs/")
LONG_FILE = 400
MANY_PARAMETERS = 8
SAME_BY_CONVENTION = frozenset({"T", "P", "R"})
"""Type variables are local to their module."""


def tracked(root: Path) -> list[str]:
    """Paths of the files that git knows, or would add, in `root`."""
    command = ["git", "-C", str(root), "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return sorted({path for path in listed if (root / path).is_file()})


def lines_of(path: Path) -> int:
    """Lines of a text file."""
    return path.read_bytes().count(b"\n")


def family_of(path: str, families: Sequence[str], also: dict[str, list[str]]) -> str | None:
    """The family that a file belongs to: the longest name wins, since names may contain each other."""
    for family in sorted(families, key=len, reverse=True):
        if any(path.startswith(prefix) for prefix in also.get(family, [])):
            return family
    parts = [part.strip("_") for part in re.split(r"[/.]", path)]
    for family in sorted(families, key=len, reverse=True):
        if any(part == family or part.startswith((f"{family}_", f"test_{family}")) for part in parts):
            return family
    return None


def folder_of(path: str, family: str) -> str:
    """The folder that a person opens for a file: down to the family's own one, or to the file's."""
    parts = Path(path).parent.parts
    return "/".join(parts[: parts.index(family) + 1] if family in parts else parts)


def per_family(root: Path, paths: Sequence[str], also: dict[str, list[str]]) -> dict[str, Any]:
    """Files, lines and folders of the Python, kernels, spec files and tests of each family."""
    families = sorted(
        path.name for path in (root / "templates").iterdir() if path.is_dir() and path.name != "prelude"
    )
    wanted = [
        p
        for p in paths
        if p.endswith((".py", ".j2", ".toml")) and not p.startswith(("generated/", "benchmarks/"))
    ]
    found: dict[str, Any] = {}
    for family in families:
        own = [path for path in wanted if family_of(path, families, also) == family]
        own += [
            p
            for p in wanted
            if p.startswith("specs/library/") and f'family = "{family}"' in (root / p).read_text("utf-8")
        ]
        own = sorted(set(own))
        product = [path for path in own if not path.startswith("tests/")]
        found[family] = {
            "files": len(product),
            "lines": sum(lines_of(root / path) for path in product),
            "test_files": len(own) - len(product),
            "folders": sorted({folder_of(path, family) for path in own}),
        }
    return found


def type_names(tree: ast.Module) -> Iterator[str]:
    """Classes of a module, and aliases that are named like types."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node.name
    for node in tree.body:
        targets = (
            node.targets
            if isinstance(node, ast.Assign)
            else [node.target]
            if isinstance(node, ast.AnnAssign)
            else []
        )
        for target in targets:
            if isinstance(target, ast.Name) and target.id[0].isupper() and not target.id.isupper():
                yield target.id


def parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Parameters of a function without self and cls."""
    named = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    return sum(argument.arg not in ("self", "cls") for argument in named)


def measure(root: Path, also: dict[str, list[str]]) -> dict[str, Any]:
    """Everything that is measured of a checkout."""
    paths = tracked(root)
    product = [path for path in paths if path.endswith(".py") and not path.startswith(NOT_PRODUCT)]
    sizes = {path: lines_of(root / path) for path in product}
    defined: dict[str, set[str]] = defaultdict(set)
    wide = 0
    for path in product:
        tree = ast.parse((root / path).read_text(encoding="utf-8"))
        for name in type_names(tree):
            defined[name].add(path)
        functions = [
            node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        wide += sum(parameters(node) >= MANY_PARAMETERS for node in functions)
    generated = [root / path for path in paths if path.startswith("generated/")]
    kernels = [path for path in generated if path.suffix == ".cu"]
    templates = [path for path in paths if path.startswith("templates/")]
    twice = {
        name: sorted(where)
        for name, where in defined.items()
        if len(where) > 1 and name not in SAME_BY_CONVENTION
    }
    return {
        "families": per_family(root, paths, also),
        "product": {
            "modules": len(product),
            "lines": sum(sizes.values()),
            "template_lines": sum(lines_of(root / path) for path in templates),
            "mean_lines": round(statistics.mean(sizes.values()), 1),
            "longest": max(sizes.values()),
            "over_400_lines": sorted(path for path, size in sizes.items() if size > LONG_FILE),
            "functions_with_8_parameters": wide,
        },
        "tests": {"lines": sum(lines_of(root / path) for path in paths if re.match(r"tests/.*\.py$", path))},
        "types_defined_twice": dict(sorted(twice.items())),
        "generated": {
            "cu_files": len(kernels),
            "files": len(generated),
            "bytes": sum(path.stat().st_size for path in generated),
        },
    }


def show(found: dict[str, Any]) -> None:
    """Print the figures for a reader."""
    for family, its in found["families"].items():
        print(f"{family}: {its['files']} files, {its['lines']} lines, {its['test_files']} files of tests")
        print(f"  in {len(its['folders'])} folders: {', '.join(its['folders'])}")
    product, generated = found["product"], found["generated"]
    print(
        f"product: {product['modules']} modules, {product['lines']} lines of Python, "
        f"{product['template_lines']} of templates"
    )
    print(f"  lines a module: mean {product['mean_lines']}, longest {product['longest']}")
    print(f"  over {LONG_FILE} lines: {', '.join(product['over_400_lines']) or 'none'}")
    print(f"  functions with {MANY_PARAMETERS} parameters or more: {product['functions_with_8_parameters']}")
    print(f"tests: {found['tests']['lines']} lines of Python")
    print(f"type names defined more than once: {len(found['types_defined_twice'])}")
    for name, where in found["types_defined_twice"].items():
        print(f"  {name}: {', '.join(where)}")
    print(
        f"generated: {generated['cu_files']} .cu of {generated['files']} files, {generated['bytes'] / 1e6:.2f} MB"
    )


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("root", nargs="?", type=Path, default=Path(__file__).resolve().parents[2])
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument(
        "--also", action="append", default=[], metavar="FAMILY=PATH", help="a file or folder of a family"
    )
    given = parser.parse_args()
    also: dict[str, list[str]] = defaultdict(list)
    for entry in given.also:
        family, _, path = entry.partition("=")
        also[family].append(path)
    found = measure(given.root, also)
    if given.json:
        print(json.dumps(found, indent=1))
    else:
        show(found)


if __name__ == "__main__":
    main()
