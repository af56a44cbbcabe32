"""The house keeps its promises: halves, wheel, sizes, start-up."""

import ast
import importlib
import pkgutil
import re
import shutil
import subprocess
import sys
import tarfile
import textwrap
import zipfile
from pathlib import Path

import pytest

import robustbench_kpca

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "robustbench_kpca"
FILE_LINES, FUNCTION_LINES = 300, 40  # what the house aims at; above them a file or function is reported
FILE_LIMIT, FUNCTION_LIMIT = 400, 80  # above these the build fails

BLOCKER = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "torchvision", "timm", "accelerate", "safetensors"}:
            raise ModuleNotFoundError(f"No module named '{name}' (blocked)", name=name)
sys.meta_path.insert(0, Blocker())
"""


def python(code: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120, **options
    )


@pytest.mark.parametrize("board", ["digits-attacks", pytest.param("digits", marks=pytest.mark.slow)])
def test_the_report_half_runs_where_torch_cannot_be_imported(board, tmp_path):
    copy = tmp_path / "leaderboards" / board
    copy.mkdir(parents=True)
    for name in ("board.toml", "records", "spot-check.json"):
        source = ROOT / "leaderboards" / board / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, copy / name)
    done = python(
        BLOCKER
        + f"""
import os
os.environ["RBK_PRESETS"] = {str(tmp_path)!r}
from robustbench_kpca.cli.main import main
assert main(["board", "render", {board!r}, "--quiet"]) == 0
del os.environ["RBK_PRESETS"]
assert main(["board", "plan", {board!r}]) == 0
records = {str(ROOT / "leaderboards" / board / "records")!r}
assert main(["check", records, "--baseline", records, "--fail", "robust_accuracy:-2pp"]) == 0
import pathlib
assert main(["records", "show", str(next(pathlib.Path(records).glob("*pgd*.record.json")))]) == 0
one = str(next(pathlib.Path(records).glob("*pgd*.record.json")))
assert main(["board", "report", one, "--out", {str(tmp_path / "own")!r}, "--quiet"]) == 0
assert main(["records", "export", one, "--to", "json"]) == 0
assert main(["list", "boards"]) == main(["list", "metrics"]) == main(["list", "protocols"]) == 0
try:
    import torch
except ModuleNotFoundError:
    print("no torch here")
"""
    )
    assert done.returncode == 0, done.stderr
    assert "no torch here" in done.stdout
    for page in ("README.md", "index.html", "board.csv", "board.json"):
        assert (copy / page).read_text() == (ROOT / "leaderboards" / board / page).read_text(), (
            f"leaderboards/{board}/{page} is not what its records say: rbk board render {board}"
        )


@pytest.mark.slow
def test_the_core_evaluates_and_shows_without_the_study(tmp_path):
    """The study of the papers' claims enters by the command line alone."""
    done = python(
        f"""
        import sys
        class Blocker:
            def find_spec(self, name, path=None, target=None):
                if name.startswith("robustbench_kpca.study"):
                    raise ModuleNotFoundError(name)
        sys.meta_path.insert(0, Blocker())
        from robustbench_kpca.cli.main import main
        asked = ["--limit", "4", "--batch-size", "4", "-q", "-o", {str(tmp_path)!r}]
        assert main(["eval", "-m", "vit_digits", "-p", "pgd20-linf-8_255", "--set", "steps=1", *asked]) == 0
        assert main(["board", "report", {str(tmp_path)!r}, "--out", {str(tmp_path / "page")!r}, "--quiet"]) == 0
        assert main(["list", "attacks"]) == main(["records", "show", {str(tmp_path)!r}]) == 0
        """
    )
    assert done.returncode == 0, done.stderr


def test_importing_the_package_costs_no_torch():
    done = python("import sys, robustbench_kpca; dir(robustbench_kpca); print('torch' in sys.modules)")
    assert done.stdout.strip() == "False"


def test_every_public_name_is_there_and_documented():
    import robustbench_kpca

    for name in robustbench_kpca.__all__:
        assert len(getattr(robustbench_kpca, name).__doc__) > 30
    with pytest.raises(AttributeError):
        _ = robustbench_kpca.nothing


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return next(folder.glob("*.whl"))


def tracked(*paths: str) -> set[str]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *paths],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return {line for line in listed.stdout.splitlines() if (ROOT / line).is_file()}


LEFT_OUT = re.compile(
    r"leaderboards/(.*\.(html|svg|png)|(.*/)?(README\.md|board\.json|board\.csv|coverage\.md)"
    r"|.*/(diagnosis|trajectory|efficiency)\.json|[^/]+/trainings/.*|(?!digits|grammar/)[^/]+/records/.*)"
)
"""What only a checkout has: pages, diagnoses, trainings, and records but those of five boards."""


def test_the_wheel_holds_exactly_the_package_and_its_presets(wheel):
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    presets = {name for name in tracked("attacks", "corruptions", "leaderboards") if not LEFT_OUT.fullmatch(name)}
    assert names == tracked("robustbench_kpca") | {f"robustbench_kpca/_presets/{name}" for name in presets}
    info = {name.partition(".dist-info/")[2] for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" in name}
    assert info == {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE", "licenses/NOTICE"}


@pytest.mark.slow
def test_wheel_and_source_are_small_enough_for_an_index(wheel, tmp_path):
    build = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    [source] = tmp_path.iterdir()
    assert wheel.stat().st_size < 8_000_000
    assert source.stat().st_size < 8_000_000
    with tarfile.open(source) as files:
        names = {name.partition("/")[2] for name in files.getnames()}
    assert {"README.md", "LICENSE", "CITATION.cff", "docs/start.md"} <= names
    assert not [name for name in names if LEFT_OUT.fullmatch(name)]


@pytest.mark.slow
def test_the_wheel_works_without_the_checkout(wheel, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    done = python(
        f"""
        import sys
        sys.path[:] = [path for path in sys.path if path not in ("", {str(ROOT)!r})]
        sys.meta_path = [finder for finder in sys.meta_path if "editable" not in repr(finder).lower()]
        sys.path.insert(0, {str(tmp_path / "site")!r})
        import robustbench_kpca
        assert robustbench_kpca.__file__.startswith({str(tmp_path)!r}), robustbench_kpca.__file__
        from robustbench_kpca.cli.main import main
        few = ["--limit", "9", "--audit", "none", "-o", "runs"]
        assert main(["eval", "-m", "vit_digits", "-p", "fgsm-linf-8_255", *few]) == 0
        assert main(["board", "plan", "shapes"]) == 0
        from robustbench_kpca import load_record
        from robustbench_kpca.records.record import find_records
        print(load_record(find_records("runs")[0]).environment.revision)
        """,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("None")


def functions(tree: ast.Module):
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node


def test_sizes_are_reported(record_property, capsys):
    large = []
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text()
        lines = len(text.splitlines())
        if lines > FILE_LINES:
            large.append((lines, FILE_LIMIT, str(path.relative_to(ROOT))))
        for node in functions(ast.parse(text)):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            length = node.end_lineno - body[0].lineno + 1 if body else 0
            if length > FUNCTION_LINES:
                large.append((length, FUNCTION_LIMIT, f"{path.relative_to(ROOT)}:{node.name}"))
    with capsys.disabled():
        for lines, limit, where in sorted(large, reverse=True):
            print(f"\n  {where}: {lines} lines (limit {limit})", end="")
    assert not [where for lines, limit, where in large if lines > limit]


def test_no_path_of_any_machine_and_no_index_is_named():
    words = ("/home/", "/root/", "/work/", "index-url", "extra-index")
    for name in tracked():
        path = ROOT / name
        if path.suffix in {".py", ".toml", ".md", ".yml", ".yaml", ".json", ".cff"} and path != Path(__file__):
            text = path.read_text()
            assert not [word for word in words if word in text], name


@pytest.mark.slow
def test_every_module_imports_with_its_types_checked():
    """An annotation that cannot be checked at all fails at import: where types are checked, with RBK_TYPECHECK=1."""
    for module in pkgutil.walk_packages(robustbench_kpca.__path__, "robustbench_kpca."):
        if not module.name.endswith("__main__"):
            try:
                importlib.import_module(module.name)
            except ModuleNotFoundError as error:  # of an extra that is not installed
                if error.name.startswith("robustbench_kpca"):
                    raise
