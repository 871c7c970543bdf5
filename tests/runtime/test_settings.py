"""Environment variables: a mistake in one is found when a table is bound."""

from pathlib import Path
from types import ModuleType

import pytest
from kernwright.runtime import InvalidSetting, bind


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("KERNWRIGHT_POLICY", "mesured", r"KERNWRIGHT_POLICY is 'mesured'; allowed are .*mean measured\?"),
        ("KERNWRIGHT_STRICT", "yes", "KERNWRIGHT_STRICT is 'yes'; allowed are 0 and 1"),
        ("KERNWRIGHT_GRAPH_LAUNCH", "off", "KERNWRIGHT_GRAPH_LAUNCH is 'off'; allowed are 0 and 1"),
        (
            "KERNWRIGHT_BUNDLE",
            "/nothing/here",
            "KERNWRIGHT_BUNDLE is '/nothing/here'; allowed are folders of bundles, .* isn't a bundle",
        ),
    ],
)
def test_a_setting_with_a_mistake_stops_the_program_when_a_table_is_bound(
    make: ModuleType, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, message: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(InvalidSetting, match=message):
        bind(make.table())
    monkeypatch.setenv(variable, "")  # as if it weren't set
    bind(make.table())


def test_a_folder_that_is_no_bundle_is_refused(
    make: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "bundle.json").write_text("{}")
    monkeypatch.setenv("KERNWRIGHT_BUNDLE", str(tmp_path))
    with pytest.raises(InvalidSetting, match=r"KERNWRIGHT_BUNDLE is .*bundle\.json has format version None"):
        bind(make.table())
