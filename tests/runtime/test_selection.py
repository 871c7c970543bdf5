"""The selection matrix with faked devices, and every reason's exact text."""

from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
from kernwright.runtime.device import CPU, Device, fake
from kernwright.runtime.request import Request
from kernwright.runtime.selection import Selection, Stage, select
from kernwright.table import DeviceKind

HERE = fake("sm_90", 132, "NVIDIA H200")
FIELDS = {
    "dtype": "float16",
    "branches": 4,
    "hidden": 64,
    "low_rank": 32,
    "tokens": 1,
    "world_size": 1,
    "eps": 1e-6,
    "norm_weight": "per_branch",
}


def request_for(make: ModuleType, *works: Any, kind: str = "boundary", **fields: Any) -> Request:
    dispatch = make.dispatch_of(*works)
    return dispatch._operator("hyper_connection").request_for({**FIELDS, **fields}, kind)


def decide(
    make: ModuleType,
    *works: Any,
    device: Device = HERE,
    policy: Any = "measured",
    comm: Any = None,
    exact: bool = False,
    kind: str = "boundary",
    **fields: Any,
) -> Selection:
    request = request_for(make, *works, kind=kind, **fields)
    return select(make.table(*works), request, device, policy, comm, exact)


def reasons(selection: Selection) -> list[str]:
    return [decision.reason for decision in selection.decisions]


@pytest.mark.parametrize(
    ("arch", "build"),
    [
        ("sm_61", None),
        ("sm_70", "sm_70"),
        ("sm_75", "sm_75"),
        ("sm_80", "sm_80"),
        ("sm_86", "sm_80"),
        ("sm_89", "sm_80"),
        ("sm_90", "sm_90"),
    ],
)
def test_the_control_serves_every_architecture_that_it_is_built_for(
    make: ModuleType, arch: str, build: str | None
) -> None:
    selection = decide(make, make.workload(make.candidate("control")), device=fake(arch))
    if build is None:
        assert selection.chosen is None
        assert reasons(selection) == [
            "the device is sm_61; this candidate is built for sm_70, sm_75, sm_80, sm_90"
        ]
    else:
        assert selection.chosen is not None
        assert (selection.chosen.candidate.name, selection.chosen.arch) == ("control", build)
        assert selection.chosen.build == make.build("control", build)
        assert reasons(selection) == [
            f"chosen: the control, unverified: no exactness record on {arch} for this source"
        ]


@pytest.mark.parametrize(
    ("fields", "cause", "reason"),
    [
        ({"tokens": 3}, "tokens", "tokens is 3; this candidate serves 1"),
        ({"dtype": "bfloat16"}, "dtype", "dtype is bfloat16; this workload is float16"),
        ({"hidden": 128}, "hidden", "hidden is 128; this workload has 64"),
        ({"branches": 2}, "branches", "branches is 2; this workload has 4"),
        ({"low_rank": 16}, "low_rank", "low_rank is 16; this workload has 32"),
        ({"eps": 1e-5}, "eps", "eps is 1e-05; this workload has 1e-06"),
        ({"norm_weight": "shared"}, "norm_weight", "norm_weight is shared; this workload is per_branch"),
        ({"world_size": 4}, "world_size", "world_size is 4; this workload has 1"),
    ],
)
def test_another_shape_is_rejected_with_its_values(
    make: ModuleType, fields: dict[str, Any], cause: str, reason: str
) -> None:
    selection = decide(make, make.workload(make.candidate("control")), **fields)
    assert selection.chosen is None
    assert reasons(selection) == [reason]
    assert selection.fallback is not None
    assert selection.fallback.cause == cause


def test_an_interval_of_tokens(make: ModuleType) -> None:
    work = make.workload(make.candidate("control"), tokens=(2, 16))
    assert [decide(make, work, tokens=n).chosen is not None for n in (1, 2, 16, 17)] == [
        False,
        True,
        True,
        False,
    ]
    assert reasons(decide(make, work, tokens=33)) == ["tokens is 33; this candidate serves 2 to 16"]


def test_eps_is_compared_as_fp32(make: ModuleType) -> None:
    work = make.workload(make.candidate("control"))
    assert decide(make, work, eps=9.999999974752427e-07).chosen is not None  # float32(1e-6)
    assert decide(make, work, eps=1.0000001e-6).chosen is None  # its neighbour


def test_a_tensor_that_kernels_cannot_take(make: ModuleType) -> None:
    work = make.workload(make.candidate("control"))
    problem = "residual is not contiguous: strides (20480, 2) of shape (1, 256)"
    request = replace(request_for(make, work), problems=(problem,))
    selection = select(make.table(work), request, HERE, "measured")
    assert reasons(selection) == [problem]
    assert selection.fallback is not None
    assert selection.fallback.cause == "layout"


def test_a_kind_that_the_candidate_lacks(make: ModuleType) -> None:
    control = make.candidate("control", steps={"boundary": ("combine_norm",), "combine": ("combine",)})
    assert reasons(decide(make, make.workload(control), kind="final")) == [
        "kind is final; this candidate serves boundary, combine"
    ]


def test_a_kind_without_a_matrix_is_not_held_against_matrix_fields(make: ModuleType) -> None:
    selection = decide(
        make,
        make.workload(make.candidate("control")),
        kind="combine",
        low_rank=7,
        eps=0.5,
        norm_weight="shared",
    )
    assert selection.chosen is not None


def test_a_cpu_and_a_small_gpu(make: ModuleType) -> None:
    control = make.candidate("control", min_sms=80)
    work = make.workload(control)
    assert reasons(decide(make, work, device=CPU)) == [
        "the device is cpu; this candidate is built for sm_70, sm_75, sm_80, sm_90"
    ]
    assert reasons(decide(make, work, device=fake("sm_75", 40, "T4"))) == [
        "the device has 40 SMs; this candidate needs 80"
    ]
    assert (
        decide(make, work, device=fake("sm_75")).chosen is not None
    )  # unknown counts aren't held against it


def test_exact_refuses_a_tolerance(make: ModuleType) -> None:
    work = make.workload(
        make.candidate("control"),
        make.candidate("mma", contract="tolerance"),
        records=(make.record("mma", exact=False),),
    )
    tolerant = decide(make, work)
    assert tolerant.chosen is not None
    assert (tolerant.chosen.candidate.name, tolerant.contract) == ("mma", "tolerance")
    exact = decide(make, work, exact=True)
    assert exact.chosen is not None
    assert (exact.chosen.candidate.name, exact.contract) == ("control", "exact")
    assert reasons(exact)[1] == "its contract is tolerance; exact=True was asked for"


@pytest.mark.parametrize(("tokens", "contract"), [(3, "exact"), (16, "exact"), (17, "tolerance")])
def test_the_reference_promises_bits_up_to_16_tokens(make: ModuleType, tokens: int, contract: str) -> None:
    assert decide(make, make.workload(make.candidate("control")), tokens=tokens).contract == contract


# Evidence and policies


def fast_and_wide(make: ModuleType, *records: Any) -> Any:
    names = ("control", "wide", "fast")
    return make.workload(*(make.candidate(name) for name in names), records=records)


NO_RECORD = (
    "no record on sm_90, 132 SMs, NVIDIA H200 for this source; "
    "policy measured dispatches admitted candidates only"
)


def test_without_records_measured_takes_the_control(make: ModuleType) -> None:
    selection = decide(make, fast_and_wide(make))
    assert selection.chosen is not None
    assert selection.chosen.candidate.name == "control"
    assert reasons(selection) == [
        "chosen: the control, unverified: no exactness record on sm_90, 132 SMs, NVIDIA H200 for this source",
        NO_RECORD,
        NO_RECORD,
    ]
    assert [decision.accepted for decision in selection.decisions] == [True, False, False]


def test_admitted_candidates_come_by_gain(make: ModuleType) -> None:
    records = (
        make.record("wide", gain=0.05),
        make.record("fast", gain=0.123),
        make.record("control", "no_difference"),
    )
    selection = decide(make, fast_and_wide(make, *records))
    assert selection.chosen is not None
    assert selection.chosen.candidate.name == "fast"
    assert [decision.accepted for decision in selection.decisions] == [True, True, True]
    admitted = "admitted on sm_90, 132 SMs, NVIDIA H200 with a gain of 12.3% over the control"
    assert reasons(selection) == [
        "eligible: the control, verified for this source on sm_90, 132 SMs, NVIDIA H200; "
        f"fast is preferred: {admitted}",
        "eligible: admitted on sm_90, 132 SMs, NVIDIA H200 with a gain of 5.0% over the control; "
        f"fast is preferred: {admitted}",
        f"chosen: {admitted}",
    ]


def test_equal_gains_keep_file_order(make: ModuleType) -> None:
    records = (make.record("fast", gain=0.1), make.record("wide", gain=0.1))
    selection = decide(make, fast_and_wide(make, *records))
    assert selection.chosen is not None
    assert selection.chosen.candidate.name == "wide"


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (
            {"verdict": "rejected", "gain": -0.021},
            "its record on sm_90, 132 SMs, NVIDIA H200 says rejected (gain -2.1% over the control)",
        ),
        ({"verdict": "invalid", "gain": None}, "its record on sm_90, 132 SMs, NVIDIA H200 says invalid"),
        (
            {"verdict": "no_difference", "gain": 0.001},
            "its record on sm_90, 132 SMs, NVIDIA H200 says no difference (gain +0.1% over the control)",
        ),
        (
            {"code": "1a2b3c4d" + "0" * 56},
            "the record is stale: it measured code 1a2b3c4d..., this is code {digest}...",
        ),
        (
            {"device": DeviceKind("sm_90", 114, "NVIDIA H100 PCIe")},
            "no record on sm_90, 132 SMs, NVIDIA H200 for this source",
        ),
    ],
)
def test_a_record_that_does_not_admit_here(make: ModuleType, record: dict[str, Any], reason: str) -> None:
    work = make.workload(
        make.candidate("control"), make.candidate("fast"), records=(make.record("fast", **record),)
    )
    selection = decide(make, work)
    assert selection.chosen is not None
    assert selection.chosen.candidate.name == "control"
    digest = make.build("fast", "sm_90").code[:8]
    expected = reason.format(digest=digest) + "; policy measured dispatches admitted candidates only"
    assert reasons(selection)[1] == expected


def test_an_invalid_record_does_not_hide_a_good_one(make: ModuleType) -> None:
    records = (make.record("fast"), make.record("fast", "invalid", None))
    selection = decide(make, fast_and_wide(make, *records))
    assert selection.chosen is not None
    assert selection.chosen.candidate.name == "fast"


def test_the_last_record_counts(make: ModuleType) -> None:
    records = (make.record("fast"), make.record("fast", "rejected", -0.1))
    selection = decide(make, fast_and_wide(make, *records))
    assert selection.chosen is not None
    assert selection.chosen.candidate.name == "control"


def test_verified_takes_what_passed_exactness_in_file_order_after_the_admitted(make: ModuleType) -> None:
    elsewhere = DeviceKind("sm_90", 114, "NVIDIA H100 PCIe")
    records = (
        make.record("fast", "rejected", -0.1),
        make.record("wide", "no_difference", 0.0, device=elsewhere),
    )
    selection = decide(make, fast_and_wide(make, *records), policy="verified")
    assert selection.chosen is not None
    assert selection.chosen.candidate.name == "wide"
    verified = "verified for this source on sm_90, 114 SMs, NVIDIA H100 PCIe"
    assert reasons(selection)[1:] == [
        f"chosen: {verified}",
        f"eligible: verified for this source on sm_90, 132 SMs, NVIDIA H200; wide is preferred: {verified}",
    ]
    admitted = decide(make, fast_and_wide(make, *records, make.record("fast")), policy="verified")
    assert admitted.chosen is not None
    assert admitted.chosen.candidate.name == "fast"


def test_verified_without_an_exactness_record(make: ModuleType) -> None:
    selection = decide(
        make,
        fast_and_wide(make, make.record("fast", exact=False, gain=0.2, verdict="invalid")),
        policy="verified",
    )
    assert selection.chosen is not None
    assert selection.chosen.candidate.name == "control"
    assert reasons(selection)[2] == (
        "no exactness record for this source; policy verified dispatches candidates that passed exactness"
    )


@pytest.mark.parametrize("policy", ["measured", "verified", "control"])
def test_a_source_that_failed_exactness_is_never_dispatched(make: ModuleType, policy: str) -> None:
    record = make.record("control", "rejected", None, exact=False)
    selection = decide(make, make.workload(make.candidate("control"), records=(record,)), policy=policy)
    assert selection.chosen is None
    assert reasons(selection) == ["this source failed exactness on sm_90, 132 SMs, NVIDIA H200"]


def test_policy_control_and_reference(make: ModuleType) -> None:
    work = fast_and_wide(make, make.record("fast"))
    control = decide(make, work, policy="control")
    assert control.chosen is not None
    assert control.chosen.candidate.name == "control"
    assert reasons(control)[1:] == ["policy control dispatches the control only"] * 2
    reference = decide(make, work, policy="reference")
    assert reference.chosen is None
    assert reference.fallback is None
    assert reasons(reference) == ["policy reference uses torch only"] * 3


def test_the_fallback_is_explained_by_the_candidate_that_came_furthest(make: ModuleType) -> None:
    half, brain = (
        make.workload(make.candidate("control")),
        make.workload(make.candidate("control"), dtype="bfloat16"),
    )
    selection = decide(make, brain, half, tokens=3)
    assert selection.fallback is not None
    assert selection.fallback.stage is Stage.INTERVAL
    assert selection.fallback.workload == half.label
    assert reasons(selection) == [
        "dtype is float16; this workload is bfloat16",
        "tokens is 3; this candidate serves 1",
    ]


def test_a_build_that_does_not_load_is_out(make: ModuleType) -> None:
    work = make.workload(make.candidate("control"))
    digest = make.build("control", "sm_90").code
    selection = select(
        make.table(work),
        request_for(make, work),
        HERE,
        "measured",
        unusable={(digest, "sm_90", None): "CuPy isn't installed"},
    )
    assert selection.chosen is None
    assert reasons(selection) == ["CuPy isn't installed"]


@pytest.mark.parametrize(
    ("device", "broken", "cause"),
    [(HERE, True, "loading"), (fake("sm_90", 40, "small"), False, "device")],
)
def test_a_candidate_that_was_never_tried_does_not_hide_what_keeps_the_control_out(
    make: ModuleType, device: Device, broken: bool, cause: str
) -> None:
    other = make.workload(make.candidate("other"), dtype="bfloat16", spec="other")
    work = make.workload(make.candidate("control", min_sms=80), make.candidate("fast"))
    digest = make.build("control", "sm_90").code
    unusable = {(digest, "sm_90", None): "CuPy isn't installed"} if broken else {}
    works = (other, work)
    selection = select(make.table(*works), request_for(make, *works), device, "measured", unusable=unusable)
    assert selection.decisions[2].stage is Stage.EVIDENCE
    assert selection.fallback is selection.decisions[1]
    assert selection.fallback.cause == cause
