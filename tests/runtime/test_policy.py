"""Policies by context manager and environment."""

import threading

import pytest
from kernwright.runtime import InvalidSetting, policy


def test_measured_is_the_default_and_the_context_manager_nests() -> None:
    assert policy.current() == "measured"
    with policy.under("control"):
        with policy.under("reference"):
            assert policy.current() == "reference"
        assert policy.current() == "control"
    assert policy.current() == "measured"


def test_another_thread_does_not_see_the_context() -> None:
    seen = []
    with policy.under("control"):
        thread = threading.Thread(target=lambda: seen.append(policy.current()))
        thread.start()
        thread.join()
    assert seen == ["measured"]


def test_the_environment_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNWRIGHT_POLICY", "verified")
    assert policy.current() == "verified"
    monkeypatch.setenv("KERNWRIGHT_POLICY", "control")
    assert policy.current() == "verified"


def test_a_bad_value_is_a_sentence_with_the_nearest_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNWRIGHT_POLICY", "mesured")
    with pytest.raises(InvalidSetting) as error:
        policy.current()
    assert str(error.value) == (
        "KERNWRIGHT_POLICY is 'mesured'; allowed are measured, verified, control, reference; "
        "did you mean measured?"
    )


@pytest.mark.parametrize(("value", "expected"), [("1", True), ("0", False), ("", False)])
def test_strict(monkeypatch: pytest.MonkeyPatch, value: str, expected: bool) -> None:
    monkeypatch.setenv("KERNWRIGHT_STRICT", value)
    assert policy.strict() is expected


def test_a_bad_strict_value_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNWRIGHT_STRICT", "yes")
    with pytest.raises(InvalidSetting, match="KERNWRIGHT_STRICT is 'yes'; allowed are 0 and 1"):
        policy.strict()
