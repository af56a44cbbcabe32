"""The digest of code: what changes it, what does not, and which files are in it."""

import importlib
import linecache
import sys
from functools import lru_cache, partial
from types import ModuleType

import pytest
import torch

from robustbench_kpca._core import code_digest
from robustbench_kpca._core.code_digest import files, of_file, of_object, of_own
from robustbench_kpca._core.code_digest.syntax import bare, digest_of
from robustbench_kpca.attacks import ATTACKS

SAMPLE = '''"""What it is."""
from __future__ import annotations
import os.path as place

LIMIT: float = 1e-3  # a limit

async def f(a, /, b: int = 0x10, *c, d=-1.5, **e) -> "str":
    """What it does."""
    match a:
        case {"x": [1, *rest], **others} if rest:
            return f"{a!r:>{b}} and {b:.2f}" "more" u"é" f'{c}'
        case int() | None:
            return b"\\x00"
    with open(place.join("a", "b")) as file, file:
        return [x async for x in file if (y := x)] or {**e, "k": ...}

class C(metaclass=type):
    "A class."
    z = 3 if LIMIT else 10**20, True, 2j, not None
    """About z."""
'''


def digest(text):
    import ast

    return digest_of(bare(ast.parse(text)))


def test_the_digest_of_a_text_is_that_of_every_version_of_python():
    assert digest(SAMPLE) == "2c179c966b95ccac"


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        ('"""What it is."""', '"""Something else."""', True),
        ('    """What it does."""\n', "", True),
        ('    "A class."', '    "Another class."', True),
        ('    """About z."""\n', "", True),
        ("  # a limit", "", True),
        ('return b"\\x00"', "return b'\\0'", True),
        ('u"é"', '"\\u00e9"', True),
        ("0x10", "16", True),
        ("{**e, ", "{ ** e,\n   ", True),
        ("1e-3", "2e-3", False),
        ("-1.5", "1.5", False),
        ("!r", "!s", False),
        (", /, ", ", ", False),
        ("None:", "False:", False),
        ("True, ", "1, ", False),
        ("async for", "for", False),
    ],
)
def test_what_changes_the_digest(before, after, same):
    assert SAMPLE.count(before) == 1
    assert (digest(SAMPLE) == digest(SAMPLE.replace(before, after))) == same


@pytest.fixture
def write(tmp_path):
    def write(**texts):
        for name, text in texts.items():
            path = tmp_path.joinpath(*name.split("__")).with_suffix(".py")
            path.parent.mkdir(exist_ok=True, parents=True)
            path.write_text(text)
        return tmp_path

    return write


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("a", True),
        ("b", True),
        ("pack__init", True),
        ("pack__c", True),
        ("pack__d", True),
        ("pack__e", False),
        ("f", False),
    ],
)
def test_what_a_file_imports_from_its_folder_is_in_its_digest(name, counts, write):
    folder = write(
        a="import b, json, torch, nothing", b="from pack import c", f="", pack__init="", pack__c="from .d import x",
        pack__d="x = 1", pack__e="",
    )  # fmt: skip
    (folder / "pack" / "init.py").rename(folder / "pack" / "__init__.py")
    before = of_file(folder / "a.py")
    changed = folder.joinpath(*name.split("__")).with_suffix(".py")
    changed = changed.with_stem("__init__") if changed.stem == "init" else changed
    changed.write_text(changed.read_text() + "\nchanged = 1")
    assert (of_file(folder / "a.py") != before) == counts


def test_a_file_in_a_package_counts_with_its_package_wherever_that_lies(write, tmp_path):
    folder = write(
        one__pack__a="from . import b\nfrom pack.deep import c", one__pack__b="", one__pack__deep__c="", one__d=""
    )
    for place in (folder / "one" / "pack", folder / "one" / "pack" / "deep"):
        (place / "__init__.py").touch()
    before = of_file(folder / "one" / "pack" / "a.py")
    (folder / "one").rename(folder / "two")
    assert of_file(folder / "two" / "pack" / "a.py") == before
    (folder / "two" / "pack" / "deep" / "c.py").write_text("changed = 1")
    assert of_file(folder / "two" / "pack" / "a.py") != before


def test_a_file_beside_installed_packages_is_alone(write, monkeypatch):
    folder = write(a="import b", b="")
    monkeypatch.setattr(files, "INSTALLED", frozenset({folder}))
    before = of_file(folder / "a.py")
    write(b="changed = 1")
    assert of_file(folder / "a.py") == before


def test_an_installed_package_counts_by_what_its_installer_wrote_down(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "INSTALLED", frozenset({tmp_path}))
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "installed").mkdir()
    for path in ("installed/__init__.py", "installed/a.py"):
        (tmp_path / path).touch()
    digests = set()
    for version, content in enumerate(("x", "y", "y")):
        (tmp_path / "installed-1.dist-info").mkdir(exist_ok=True)
        (tmp_path / "installed-1.dist-info" / "METADATA").write_text("Name: installed\nVersion: 1\n")
        record = f"installed/__init__.py,sha256=0,0\ninstalled/a.py,sha256={content},0\nother.py,sha256={version},0\n"
        (tmp_path / "installed-1.dist-info" / "RECORD").write_text(record)
        files._written_by_installer.cache_clear()
        digests.add(of_file(tmp_path / "installed" / "a.py"))
    assert len(digests) == 2, "only files of the package count"


def test_a_file_that_is_no_code_has_a_digest_of_its_bytes(write):
    folder = write(a="def", b="def ")
    assert of_file(folder / "a.py") != of_file(folder / "b.py")


def test_code_that_is_declared_equal_keeps_its_digest(write, monkeypatch):
    folder = write(a="import b", b="x = 1")
    monkeypatch.setattr(files, "PACKAGE", folder)

    def of_a():
        return files._digest(folder / "a.py", folder, lambda path: path.parent == folder)

    before = of_a()
    write(a="import b, c", b="x = 3 - 2", c="y = 2")
    assert of_a() != before
    old, new = digest("import b"), digest("import b, c")
    equal = {"a.py": {new: old}, "b.py": {digest("x = 3 - 2"): digest("x = 1")}, "c.py": {digest("y = 2"): ""}}
    monkeypatch.setattr(files, "EQUAL", equal)
    assert of_a() == before
    write(c="y = 3")
    assert of_a() != before


@pytest.mark.parametrize("file", files.EQUAL)
def test_what_is_declared_equal_is_what_the_file_holds(file):
    """Whoever changes such a file shows again that outcomes stay, and declares it, or takes its line out."""
    [now] = files.EQUAL[file]
    assert now == digest((files.PACKAGE / file).read_text())


def test_the_version_of_an_attack_is_of_its_file_and_of_what_it_shares():
    versions = {name: ATTACKS.code(name) for name in ATTACKS.names()}
    assert len(set(versions.values())) == len(versions)
    assert versions["pgd"] == of_own("robustbench_kpca.attacks.pgd", "attacks")
    assert versions["pgd"] != of_own("robustbench_kpca.attacks.pgd", "attacks/pgd.py")


def test_objects_and_functions_are_of_the_file_that_defines_them(write, monkeypatch):
    folder = write(of_mine="class Base: pass\nclass Mine(Base): pass\ndef f(): pass", of_theirs="x = 1")
    monkeypatch.syspath_prepend(folder)
    module = importlib.import_module("of_mine")
    expected = of_object(module.f)
    assert expected
    assert {of_object(one) for one in (partial(module.f), lru_cache(module.f))} == {expected}
    assert of_object(module.Mine) == of_object(module.Mine()) != ""
    assert code_digest.is_foreign(module.Mine)
    assert not any(map(code_digest.is_foreign, (int, torch.nn.Linear, ATTACKS.get("pgd"))))
    del sys.modules["of_mine"]


CELLS = {
    "<cell 1>": "import of_theirs\nSCALE = 2\ndef scaled(x):\n    return SCALE * x\n",
    "<cell 2>": """
LIMIT = 1
class Mine:
    '''Doc.'''
    factor = LIMIT
    def f(self, x, y):
        values = scaled(x) + of_theirs.x
        return values
values = y = Mine().f(1, 2)
""",
}


@pytest.mark.parametrize(
    ("cell", "before", "after", "same"),
    [
        (2, "factor = LIMIT", "factor = 3", False),
        (2, "LIMIT = 1", "LIMIT = 2", False),
        (2, "Doc.", "Docs.", True),
        (2, "f(1, 2)", "f(3, 4)", True),
        (1, "SCALE * x", "SCALE * x * x", False),
        (1, "SCALE = 2", "SCALE = 3", False),
        (1, "x = 1", "x = 2", False),
    ],
)
def test_a_class_of_a_notebook_is_its_definition_and_what_that_names(cell, before, after, same, write, monkeypatch):
    monkeypatch.syspath_prepend(write(of_theirs="x = 1"))

    def read(replace):
        main = ModuleType("__main__")
        monkeypatch.setitem(sys.modules, "__main__", main)
        sys.modules.pop("of_theirs", None)
        importlib.invalidate_caches()
        for number, (name, text) in enumerate(CELLS.items(), 1):
            text = text.replace(*replace) if number == cell else text
            monkeypatch.setitem(linecache.cache, name, (len(text), None, text.splitlines(keepends=True), name))
            exec(compile(text, name, "exec"), vars(main))
        sys.modules.pop("of_theirs", None)
        return of_object(main.Mine)

    first = read(("", ""))
    write(of_theirs="x = 1" if before != "x = 1" else after)
    assert first
    assert (read((before, after)) == first) == same
