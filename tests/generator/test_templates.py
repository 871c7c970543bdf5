"""The text of templates: strict about names, tidy, self-contained, replaceable part by part."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernwright.generator import Generation, TemplateBroken, plan_generation
from kernwright.generator.environment import TEMPLATES, make_environment, render, tidy
from kernwright.generator.literals import float_literal
from kernwright.specs import families, find_workspace

FAMILY = TEMPLATES / "hyper_connection"


@pytest.fixture(scope="module")
def library() -> Generation:
    return plan_generation(find_workspace(TEMPLATES))


def own_template(lab: Any, name: str, text: str) -> Path:
    path: Path = lab.root / "templates" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_a_missing_name_is_an_error_with_file_and_line(lab: Any) -> None:
    path = own_template(lab, "prelude/reduction.cuh.j2", "// one\n{{ branches }}\n{{ brances }}\n")
    with pytest.raises(TemplateBroken) as raised:
        _ = lab.plan
    assert str(raised.value) == f"{path}:3: 'brances' is undefined; correct the template"


def test_a_syntax_error_and_a_missing_template_are_sentences(lab: Any) -> None:
    path = own_template(lab, "prelude/reduction.cuh.j2", "{% if %}\n")
    with pytest.raises(TemplateBroken, match=re.escape(f"{path}:1: Expected an expression")):
        _ = lab.plan
    path.write_text('\n{% include "prelude/none.cuh.j2" %}\n', encoding="utf-8")
    with pytest.raises(TemplateBroken, match=r"there is no template prelude/none\.cuh\.j2; correct"):
        _ = lab.plan


def test_a_name_missing_in_a_condition_is_an_error_too(lab: Any) -> None:
    own_template(lab, "prelude/reduction.cuh.j2", "{% if brances %}\n{% endif %}\n")
    with pytest.raises(TemplateBroken):
        _ = lab.plan


def test_a_workspace_template_wins_over_the_shipped_one(lab: Any) -> None:
    lab.generate()
    shipped = lab.files()
    text = (TEMPLATES / "prelude" / "reduction.cuh.j2").read_text(encoding="utf-8")
    own_template(
        lab, "prelude/reduction.cuh.j2", text.replace("// Butterfly over", "// OURS: butterfly over")
    )
    (lab.root / "templates" / "hyper_connection").mkdir()
    shutil.copy(FAMILY / "down.cuh.j2", lab.root / "templates" / "hyper_connection" / "up_mix.cuh.j2")
    lab.generate()
    for name, content in lab.files().items():
        if name.endswith(".cu"):
            before, after = shipped[name].decode(), content.decode()
            assert "// OURS: butterfly" in after
            assert "namespace up_mix" in before
            assert "namespace up_mix" not in after  # the family's folder too
    shutil.rmtree(lab.root / "templates")
    lab.generate()
    assert lab.files() == shipped


def test_every_source_is_tidy_and_says_what_it_is(library: Generation) -> None:
    seen: set[str] = set()
    for workload in library.workloads:
        for candidate in workload.candidates:
            for source in candidate.sources:
                assert bool(source.text) == bool(candidate.symbols)
                if not source.text:
                    assert (source.path, source.sha256) == ("", "")
                    continue
                seen.add(source.path)
                lines = source.text.split("\n")
                head = lines[: lines.index("")]
                assert all(line.startswith("//") for line in head)
                spec, name = workload.spec, candidate.candidate
                assert lines[0] == (
                    f"// {workload.family.name} {spec}, candidate {name.name} (route {name.route})"
                )
                assert lines[1].startswith(f"// workload: dtype = {workload.workload.dtype}, ")
                assert f"// Generated from {spec}.toml; edit that and run `kernwright generate`." in head
                assert not re.search("sm_[789]0", "".join(head))
                assert re.fullmatch("[0-9a-f]{64}", source.code)
                tidy_lines(source.text)
                assert set(re.findall(r"#\s*include\s*(\S+)", source.text)) <= {
                    "<cuda_fp16.h>",
                    "<cuda_bf16.h>",
                }
    assert seen == {name for name in library.files if name.endswith(".cu")}
    assert 30 < len(seen) <= 160
    tidy_lines(library.files["dispatch.py"])


def tidy_lines(text: str) -> None:
    assert text.endswith("\n")
    assert not text.endswith("\n\n")
    assert "\n\n\n" not in text
    assert not re.search(r"[ \t]\n|\t|\r", text)
    assert not re.search(r"TODO|FIXME|\{\{|\{%|Undefined", text)


def test_sources_follow_the_numerics_contract(library: Generation) -> None:
    banned = r"\b(__expf|expf|rsqrt\w*|fminf|fmaxf|__fmul_\w+|atomicAdd|__threadfence\w*|tanh\w*|ex2|asm)\b"
    device_alone = re.compile(r"#ifdef __CUDA_ARCH__\n.*?#else\n(.*?)#endif", re.DOTALL)  # has a host branch
    for text in library.files.values():
        code = device_alone.sub(r"\1", re.sub(r"//.*", "", text))
        assert not re.search(banned, code)


def test_a_text_is_one_file_and_a_file_one_candidates(library: Generation) -> None:
    paths: dict[str, set[str]] = {}
    for workload in library.workloads:
        for candidate in workload.candidates:
            for source in candidate.sources:
                paths.setdefault(source.path, set()).add(f"{workload.spec} {candidate.candidate.name}")
    del paths[""]
    assert all(len(owners) == 1 for owners in paths.values())
    texts = [text for name, text in library.files.items() if name.endswith(".cu")]
    assert len(set(texts)) == len(texts)


def test_no_text_has_a_condition_or_a_dimension_without_a_purpose(library: Generation) -> None:
    leftovers = re.compile(
        r"; true\)|if \(true\)|constexpr int (?:first|first_segment) = 0;|\b(?:STEPS|SEGMENTS|PASSES|GATES) = 1[,;]"
    )
    for name, text in library.files.items():
        assert not name.endswith(".cu") or not leftovers.findall(text), name


def test_candidates_differ_in_more_than_their_names(library: Generation) -> None:
    for workload in library.workloads:
        bodies = set()
        for candidate in workload.candidates:
            text = candidate.sources[0].text.replace(f"_{candidate.candidate.name}(", "(")
            # Where the op itself does something with the schedule, kernels may be the same.
            bodies.add((text[text.find("\n\n") :], repr(candidate.lowering.options)))
        assert len(bodies) == len(workload.candidates)


def test_intrinsics_that_a_cpu_lacks_stand_inside_the_prelude_alone() -> None:
    intrinsic = r"__(?:ldg|ldcg|fdiv_rn|fsqrt_rn|nv_atomic_\w+|shfl_xor\w*)|\basm\b"
    for path in sorted(FAMILY.glob("*.j2")):
        assert not re.findall(intrinsic, path.read_text(encoding="utf-8")), path


@given(st.text(alphabet="a \t\n{", max_size=40))
def test_tidy_strips_blanks_and_keeps_the_rest(text: str) -> None:
    tidied = tidy(text)
    assert tidied.endswith("\n")
    assert "\n\n\n" not in tidied
    assert not re.search(r"[ \t]\n", tidied)
    assert [line.rstrip() for line in text.split("\n") if line.strip()] == [
        x for x in tidied.split("\n") if x
    ]
    assert tidy(tidied) == tidied


@given(st.floats(min_value=2.0**-140, max_value=2.0**127, width=32))
def test_a_float_literal_is_the_value_itself(value: float) -> None:
    text, comment = float_literal(value).split(" ", 1)
    assert text.endswith("f")
    assert float.fromhex(text[:-1]) == value
    assert comment == f"/* {value!r} */"


def test_nothing_is_escaped_and_blocks_leave_no_blanks(lab: Any) -> None:
    own_template(lab, "raw.j2", "{{ text }}\n\n\n  {% if true %}\n  x\n  {% endif %}\n")
    workspace = find_workspace(lab.root)
    environment = make_environment(workspace, families(workspace))
    assert render(environment, "raw.j2", {"text": "a<b>&'\""}) == "a<b>&'\"\n\n  x\n"
