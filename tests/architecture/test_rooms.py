"""A module whose name begins with an underscore is private to its folder."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "robustbench_kpca"


def private_imports(path: Path) -> list[str]:
    """Modules with an underscore that a file imports from another folder than its own."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("robustbench_kpca"):
            continue
        names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            folder, _, module = name.rpartition(".")
            private = module.startswith("_") and not module.startswith("__")
            own = ".".join(["robustbench_kpca", *path.parent.relative_to(PACKAGE).parts])
            if private and folder != own and (PACKAGE.parent / Path(*name.split("."))).with_suffix(".py").exists():
                found.append(name)
    return found


def test_no_file_imports_a_private_module_of_another_folder():
    found = {str(path.relative_to(PACKAGE)): private_imports(path) for path in PACKAGE.rglob("*.py")}
    assert {path: names for path, names in found.items() if names} == {}


def test_the_top_level_shows_at_most_eighteen_names():
    shown = [path.stem for path in PACKAGE.iterdir() if not path.name.startswith(("_", "."))]
    assert len(shown) <= 18, sorted(shown)


def test_such_an_import_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(f"{__name__}.PACKAGE", tmp_path / "robustbench_kpca")
    for name in ("attacks/_adam.py", "cli/show.py"):
        (tmp_path / "robustbench_kpca" / name).parent.mkdir(parents=True)
        (tmp_path / "robustbench_kpca" / name).write_text("from robustbench_kpca.attacks import _adam\n")
    assert private_imports(tmp_path / "robustbench_kpca/cli/show.py") == ["robustbench_kpca.attacks._adam"]
    assert private_imports(tmp_path / "robustbench_kpca/attacks/_adam.py") == []
