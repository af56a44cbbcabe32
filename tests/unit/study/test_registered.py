"""A plan is a plan only before: one that was changed after a record stops the board."""

import subprocess

import pytest
from stand_ins import posing_as

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.records.record import Record
from robustbench_kpca.study.reproduction.tables import registered


@pytest.fixture
def git(tmp_path):
    who = ("-c", "user.name=nobody", "-c", "user.email=nobody@example.org")

    def run(*words):
        return subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    run("init", "--quiet")
    run("commit", "--quiet", "--allow-empty", "--message", "Begin")
    return run


def commit(git, folder, **files):
    for name, text in files.items():
        (folder / f"{name}.md").write_text(text)
        git("add", f"{name}.md")
    git("commit", "--quiet", "--message", "Write")
    return git("rev-parse", "HEAD").strip()


def made_at(revision):
    spec = posing_as(object, model=posing_as(object, name="net"))
    return posing_as(Record, spec=spec, environment=posing_as(object, revision=revision))


def test_records_at_the_plan_follow_it_and_those_of_another_history_do_not(git, tmp_path):
    planned = commit(git, tmp_path, plan="Ten seeds.")
    later = commit(git, tmp_path, notes="A deviation.")
    said = registered(tmp_path, [made_at(planned), made_at(f"{later}+")])
    named = f"the plan of this pack (plan.md, commit {planned[:8]})"
    assert said == f"By its maker's history, {named} is older than the records."
    commit(git, tmp_path, plan="Ten seeds.")
    assert "cannot be told here: this history has none" in registered(tmp_path, [made_at("0" * 40), made_at(None)])


@pytest.mark.parametrize("mark", ["", "+"])
def test_a_plan_that_was_changed_after_a_record_is_refused(git, tmp_path, mark):
    before = commit(git, tmp_path, plan="Ten seeds.")
    after = commit(git, tmp_path, plan="Five seeds.")
    with pytest.raises(BadInputError, match=f"{after[:8]}, after a record of net was made .revision {before[:8]}"):
        registered(tmp_path, [made_at(after), made_at(before + mark)])


@pytest.mark.parametrize("revision", [None, "0" * 40, "--all", "HEAD"])
def test_a_revision_that_the_history_lacks_is_said(git, tmp_path, revision):
    planned = commit(git, tmp_path, plan="Ten seeds.")
    said = registered(tmp_path, [made_at(planned), made_at(revision)])
    assert said.endswith("is older than the records; this history does not have 1 of their revisions.")


def test_plans_of_no_commit_or_history_are_refused(git, tmp_path):
    (tmp_path / "plan.md").write_text("Ten seeds.")
    with pytest.raises(BadInputError, match="not committed"):
        registered(tmp_path, [made_at(git("rev-parse", "HEAD").strip())])
    (tmp_path / "plan.md").write_text("Ten seeds.")
    assert "no git history" in registered(tmp_path, [made_at("0" * 40)])


def test_a_plan_with_changes_of_no_commit_is_refused(git, tmp_path):
    planned = commit(git, tmp_path, plan="Ten seeds.")
    (tmp_path / "plan.md").write_text("Five seeds.")
    with pytest.raises(BadInputError, match=r"plan\.md has changes that are not committed"):
        registered(tmp_path, [made_at(planned)])


def test_a_linked_working_tree_with_packed_branches_is_read(git, tmp_path):
    planned = commit(git, tmp_path, plan="Ten seeds.")
    git("worktree", "add", "--quiet", "tree")
    git("pack-refs", "--all")
    git("gc", "--quiet")
    assert "older than the records." in registered(tmp_path / "tree", [made_at(planned)])
