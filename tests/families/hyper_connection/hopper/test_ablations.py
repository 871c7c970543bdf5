"""The texts with a stage left out: every edit fits the generated text, and what comes of it compiles."""

from __future__ import annotations

import pytest
from harness.paths import CHECKOUT
from harness.workspaces import load_module
from kernwright.compiler.compile import compile_source
from kernwright.emulator import check

from .conftest import generated

ablations = load_module("_ablations", CHECKOUT / "benchmarks" / "_ablations.py")


def text():
    entries = generated("qwen38_flash_tp1")["float16"].candidates
    return next(c for c in entries if c.candidate.name == "one_kernel").sources[-1].text


@pytest.mark.parametrize("name", [*ablations.STAGES, *ablations.OTHERS])
def test_an_edit_fits_and_compiles(name):
    edits = {**ablations.STAGES, **ablations.OTHERS}[name]
    artifact = compile_source(ablations.edited(text(), edits), file_name="ablation.cu", arch="sm_90")
    timed = artifact.kernels["hyper_connection_boundary_one_kernel"]  # others may spill: they aren't timed
    assert (timed.spill_bytes, timed.stack_bytes) == (0, 0)


def test_an_edit_that_does_not_fit_is_an_error():
    with pytest.raises(ablations.NoMatch, match="is 0 times in the text, not 1: adapt the edit"):
        ablations.edited(text(), [ablations.Edit("what isn't there", "")])


def test_the_other_layout_of_the_exchange_is_right(chain):
    edits = tuple((edit.old, edit.new) for edit in ablations.OTHERS["a row's words side by side"])
    made = chain("one", spec="tiny", edits=edits).start()
    made.add("boundary", 1)
    made.add("final", 2)
    assert not check(made.launches, made.expected).problems
