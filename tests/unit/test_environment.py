"""What a record says of the machine."""

import platform

import pytest

from robustbench_kpca._engine.inference import environment

EPYC = (
    "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: {}\nmodel name\t: AMD EPYC\nstepping\t: 1"
)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (EPYC.format(17) + "\n\n" + EPYC.format(99), "AMD EPYC (family 25, model 17)"),
        (EPYC.format(1), "AMD EPYC (family 25, model 1)"),
        ("processor\t: 0\nmodel name\t: Some CPU\n", "Some CPU"),
        ("processor\t: 0\nBogoMIPS\t: 48.00\n", "abacus"),
        (None, "abacus"),
    ],
)
def test_processors_of_one_name_are_told_apart_by_family_and_model(text, name, tmp_path, monkeypatch):
    monkeypatch.setattr(environment, "_CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(platform, "processor", lambda: "")
    monkeypatch.setattr(platform, "machine", lambda: "abacus")
    if text is not None:
        (tmp_path / "cpuinfo").write_text(text)
    assert environment.processor() == name
