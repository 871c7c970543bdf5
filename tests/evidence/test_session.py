"""From a workspace and words to what is measured: only if the dispatch module is what the spec files ask for."""

from __future__ import annotations

import shutil

import pytest
import torch
from kernwright.evidence.commands import BenchRequest, UnknownRankContext, run_bench, run_fuzz, run_verify
from kernwright.evidence.explain import QuestionError
from kernwright.evidence.family_evidence import NoEvidence, evidence_of
from kernwright.evidence.session import Drifted, NoGpu, Session, gpu
from kernwright.evidence.verify import NothingToVerify
from kernwright.families.hyper_connection.evidence import EVIDENCE
from kernwright.specs import ShortFormError, find_workspace

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")


@pytest.fixture
def root(odd_root, tmp_path):
    """A copy to change."""
    return shutil.copytree(odd_root, tmp_path / "odd")


def opened(root):
    return Session.open(find_workspace(root))


def test_a_workspace_as_generated_opens(odd_root):
    session = opened(odd_root)
    assert [workload.label for workload in session.workloads([])] == [
        "fp16-hc3-h96-n1-r20-tp1",
        "bf16-hc3-h96-n1-r20-tp1",
        "fp16-hc5-h192-n1-r72-tp1",
        "bf16-hc5-h192-n1-r72-tp1",
        "fp16-hc2-h40-n1-r7-tp1",
    ]


def test_specs_and_short_forms_select(odd_root):
    session = opened(odd_root)

    def labels(*texts):
        return [workload.label for workload in session.workloads(texts)]

    assert labels("odd_lanes") == ["fp16-hc3-h96-n1-r20-tp1", "bf16-hc3-h96-n1-r20-tp1"]
    assert labels("odd_plain", "bf16-hc5") == ["bf16-hc5-h192-n1-r72-tp1", "fp16-hc2-h40-n1-r7-tp1"]
    assert labels("odd_plain", "fp16-hc2") == ["fp16-hc2-h40-n1-r7-tp1"]
    with pytest.raises(ShortFormError):
        labels("fp16-hc7")


def test_the_family_of_a_workload(odd_root):
    session = opened(odd_root)
    workload = session.workloads(["odd_plain"])[0]
    family = session.family(workload)
    assert family.name == "hyper_connection"
    assert evidence_of(family) is EVIDENCE


def test_a_spec_that_changed_since_is_refused(root):
    spec = root / "specs" / "odd_lanes.toml"
    spec.write_text(spec.read_text().replace("rows_per_cta = 32, ctas = 2", "rows_per_cta = 32, ctas = 3"))
    with pytest.raises(Drifted) as raised:
        opened(root)
    assert str(raised.value) == (
        f"the dispatch module of {root / 'generated'} isn't what the spec files ask for (6 sources are new, 6 gone); "
        f"run `kernwright generate`"
    )


def test_a_comment_is_no_change(root):
    spec = root / "specs" / "odd_lanes.toml"
    spec.write_text("# a comment\n" + spec.read_text())
    opened(root)


@pytest.mark.parametrize("change", ["edited", "missing"])
def test_a_source_that_is_not_what_the_table_names_is_refused(root, change):
    source = next((root / "generated").rglob("striding*.cu"))
    if change == "edited":
        source.write_text(source.read_text() + "// tuned by hand\n")
    else:
        source.unlink()
    with pytest.raises(
        Drifted, match=r"striding(\.\w+)?\.cu (has digest|can't be read).*run `kernwright generate`$"
    ):
        opened(root)


def test_nothing_generated_yet_is_said(root):
    shutil.rmtree(root / "generated")
    with pytest.raises(QuestionError, match=r"doesn't exist; run `kernwright generate` first$"):
        opened(root)


@no_gpu
def test_without_a_gpu_the_emulator_is_offered(odd_root):
    with pytest.raises(NoGpu, match=r"^no CUDA GPU here; verify with --on emulator"):
        gpu()
    with pytest.raises(NoGpu):
        run_verify(find_workspace(odd_root), "cuda", [], [], [], [], quiet=True)
    request = BenchRequest([], [], ["none"], "", 5, 5, 20, record=False)
    with pytest.raises(NoGpu):
        list(run_bench(find_workspace(odd_root), request, quiet=True))


def test_kernels_run_nowhere_else(odd_root):
    with pytest.raises(
        UnknownRankContext, match=r'^kernels run on "emulator" or "cuda"; "gpu" was asked for$'
    ):
        run_verify(find_workspace(odd_root), "gpu", [], [], [], [], quiet=True)


def test_fuzzing_a_candidate_that_is_not_there_is_an_error(odd_root):
    with pytest.raises(
        NothingToVerify, match=r"its candidates are replicated, built for sm_70, sm_80, sm_90$"
    ):
        run_fuzz(find_workspace(odd_root), "odd_plain", ["wide"], 1, 0, sanitize=False, quiet=True)


def test_a_family_without_evidence_is_said(odd_root):
    from dataclasses import replace

    session = opened(odd_root)
    family = replace(session.family(session.workloads([])[0]), name="mine", package="kernwright.compiler")
    with pytest.raises(
        NoEvidence, match=r"^family mine has no module kernwright\.compiler\.evidence, so there are no inputs"
    ):
        evidence_of(family)
