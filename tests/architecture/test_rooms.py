"""A module whose name begins with an underscore is private to its folder; no module imports itself by way of others."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "robustbench_kpca"


def private_imports(path: Path) -> list[str]:
    """Modules with an underscore that a file imports from another folder than its own."""
    imported = []
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("robustbench_kpca"):
            continue
        names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            folder, _, module = name.rpartition(".")
            private = module.startswith("_") and not module.startswith("__")
            own = ".".join(["robustbench_kpca", *path.parent.relative_to(PACKAGE).parts])
            if private and folder != own and (PACKAGE.parent / Path(*name.split("."))).with_suffix(".py").exists():
                imported.append(name)
    return imported


def test_no_file_imports_a_private_module_of_another_folder():
    by_file = {str(path.relative_to(PACKAGE)): private_imports(path) for path in PACKAGE.rglob("*.py")}
    assert {path: names for path, names in by_file.items() if names} == {}


def test_the_top_level_shows_at_most_eighteen_names():
    shown = [path.stem for path in PACKAGE.iterdir() if not path.name.startswith(("_", "."))]
    assert len(shown) <= 18, sorted(shown)


def test_the_folders_of_unit_tests_are_those_of_the_package():
    """A module of `_core` or `_engine` is tested in `core` or `engine`; no test lies beside the folders."""
    unit = PACKAGE.parent / "tests/unit"
    rooms = {path.parent.name.removeprefix("_") for path in PACKAGE.glob("*/__init__.py")}
    assert {path.relative_to(unit).parts[0] for path in unit.rglob("*.py")} <= rooms


def imports(package: Path) -> dict[str, set[str]]:
    """Every module of a package, and the modules of it that it imports, in functions or where types are checked too."""
    paths = {".".join(path.relative_to(package.parent).with_suffix("").parts): path for path in package.rglob("*.py")}
    paths = {name.removesuffix(".__init__"): path for name, path in paths.items()}
    imported: dict[str, set[str]] = {name: set() for name in paths}
    for name, path in paths.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                whole = [f"{node.module}.{alias.name}" for alias in node.names]
                imported[name] |= {each if each in paths else node.module for each in whole}
            elif isinstance(node, ast.Import):
                imported[name] |= {alias.name for alias in node.names}
    return {name: (used & set(paths)) - {name} for name, used in imported.items()}


def test_no_module_imports_itself_by_way_of_others():
    TopologicalSorter(imports(PACKAGE)).prepare()  # names the modules of a circle
