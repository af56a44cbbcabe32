"""The SHA-256 of code from outside: which files are in it, and that `sha256sum` gives the same."""

import importlib
import linecache
import subprocess
import sys
from functools import lru_cache, partial
from types import ModuleType

import pytest
import torch

from robustbench_kpca._core import outside
from robustbench_kpca._core.outside import is_foreign, of_file, of_object
from robustbench_kpca.attacks import ATTACKS

FILES = {
    "a.py": "import b, json, torch, nothing", "b.py": "from pack import c\ndef later():\n    import g", "f.py": "",
    "g.py": "", "pack/__init__.py": "", "pack/c.py": "from .d import x\nfrom ... import y", "pack/d.py": "x = 1",
    "pack/e.py": "", "no.py": "def",
}  # fmt: skip
IMPORTED = ["a.py", "b.py", "g.py", "pack/__init__.py", "pack/c.py", "pack/d.py"]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "pack").mkdir()
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def sha256sum(folder, *names, given=None):
    made = subprocess.run(["sha256sum", *names], cwd=folder, input=given, capture_output=True, text=True, check=True)
    return made.stdout


@pytest.mark.parametrize("name", FILES)
def test_what_a_file_imports_from_its_folder_is_in_its_digest(name, folder):
    before = of_file(folder / "a.py")
    assert sha256sum(folder, given=sha256sum(folder, *IMPORTED)).startswith(before)
    (folder / name).write_text(FILES[name] + "\nchanged = 1")
    assert (of_file(folder / "a.py") != before) == (name in IMPORTED)


def test_files_count_with_their_package_and_alone(folder):
    assert sha256sum(folder, "no.py").startswith(of_file(folder / "no.py"))
    before = of_file(folder / "pack" / "c.py")
    folder = folder.rename(folder.with_name("moved"))
    assert of_file(folder / "pack" / "c.py") == before
    (folder / "pack" / "__init__.py").write_text("changed = 1")
    assert of_file(folder / "pack" / "c.py") != before


def test_an_installed_package_counts_by_what_its_installer_wrote_down(tmp_path, monkeypatch):
    monkeypatch.setattr(outside, "INSTALLED", frozenset({tmp_path}))
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "installed").mkdir()
    (tmp_path / "installed-1.dist-info").mkdir()
    (tmp_path / "installed-1.dist-info" / "METADATA").write_text("Name: installed\nVersion: 1\n")
    for path in ("installed/__init__.py", "installed/a.py"):
        (tmp_path / path).touch()
    digests = set()
    for version, content in enumerate(("x", "y", "y")):
        record = f"installed/__init__.py,sha256=0,0\ninstalled/a.py,sha256={content},0\nother.py,sha256={version},0\n"
        (tmp_path / "installed-1.dist-info" / "RECORD").write_text(record)
        outside._written_by_installer.cache_clear()
        digests.add(of_file(tmp_path / "installed" / "a.py"))
    assert len(digests) == 2, "only files of the package count"


def test_objects_and_cells_are_of_what_defines_them(tmp_path, monkeypatch):
    (tmp_path / "of_mine.py").write_text("class Base: pass\nclass Mine(Base): pass\ndef f(): pass")
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("of_mine")
    first = of_file(tmp_path / "of_mine.py")
    assert {of_object(one) for one in (partial(module.f), lru_cache(module.f), module.Mine, module.Mine())} == {first}
    assert is_foreign(module.Mine)
    assert not any(map(is_foreign, (int, torch.nn.Linear, ATTACKS.get("pgd"))))
    (tmp_path / "of_mine.py").write_text("changed = 1")
    assert of_object(module.f) == first != of_file(tmp_path / "of_mine.py", now=True)
    del sys.modules["of_mine"]
    main = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    cells = {
        "<one>": "SCALE = 2\nclass Mine:\n    factor = SCALE\n    def f(self): pass\n",
        "<two>": "class Bare: pass",
    }
    for name, text in cells.items():
        monkeypatch.setitem(linecache.cache, name, (len(text), None, text.splitlines(keepends=True), name))
        exec(compile(text, name, "exec"), vars(main))
    assert sha256sum(None, given=cells["<one>"]).startswith(of_object(main.Mine))
    assert of_object(main.Bare) == "", "no method says where it is written"
