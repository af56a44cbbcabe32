"""Workflows of GitHub say what they may do and which versions they use, and install nothing by a name nobody owns."""

import re
from pathlib import Path

import pytest
import yaml

GITHUB = Path(__file__).parents[2] / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))


def ids(path):
    return path.stem


@pytest.mark.parametrize("path", WORKFLOWS, ids=ids)
def test_permissions_are_stated(path):
    workflow = yaml.safe_load(path.read_text())
    assert "permissions" in workflow
    if workflow["permissions"] == {}:
        assert all("permissions" in job for job in workflow["jobs"].values())


def test_actions_are_pinned():
    """By the digest of a commit, with the full version as comment; each version has one digest."""
    files = [*WORKFLOWS, GITHUB / "actions/robustness/README.md"]
    used = [line for path in files for line in re.findall(r"uses: (?!\./|OWNER/)(.*)", path.read_text())]
    pinned = [re.fullmatch(r"([\w./-]+)@([0-9a-f]{40}) # (v\d+\.\d+\.\d+)", line) for line in used]
    assert all(pinned), used
    pins = {each.groups() for each in pinned}
    assert len(pins) == len({(action, version) for action, _, version in pins})


def test_the_job_that_runs_the_callers_code_cannot_write():
    jobs = yaml.safe_load((GITHUB / "workflows/robustness.yml").read_text())["jobs"]
    assert [name for name, job in jobs.items() if "write" in job["permissions"].values()] == ["comment"]


def test_nothing_is_installed_by_a_default_name():
    action = yaml.safe_load((GITHUB / "actions/robustness/action.yml").read_text())
    workflow = yaml.safe_load((GITHUB / "workflows/robustness.yml").read_text())
    called = workflow[True]["workflow_call"]  # YAML 1.1 reads `on` as a truth
    for install in (action["inputs"]["install"], called["inputs"]["install"]):
        assert install["required"] is True
        assert "default" not in install
    for path in GITHUB.rglob("*.*"):
        assert not re.search(r"pip install [^\n]*robustbench[-_]kpca", path.read_text()), path


def test_only_the_job_that_publishes_may_identify_itself():
    jobs = yaml.safe_load((GITHUB / "workflows/release.yml").read_text())["jobs"]
    assert [name for name, job in jobs.items() if "write" in job["permissions"].values()] == ["publish"]
    assert jobs["publish"]["needs"] == "try"
    assert jobs["try"]["needs"] == "build"
    assert {"3.11", "3.13"} == set(jobs["try"]["strategy"]["matrix"]["python"])


@pytest.mark.parametrize("path", sorted((GITHUB / "ISSUE_TEMPLATE").glob("[!c]*.yml")), ids=ids)
def test_forms_are_as_github_reads_them(path):
    form = yaml.safe_load(path.read_text())
    assert {"name", "description", "body"} <= form.keys()
    identifiers = [field["id"] for field in form["body"]]
    assert len(set(identifiers)) == len(identifiers)
    assert all(field["type"] in ("input", "textarea") and field["attributes"]["label"] for field in form["body"])
