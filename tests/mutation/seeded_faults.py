"""Which faults the tests find: each is put into a copy of the tree, where the tests that execute its line are run.

1. One run of the long suite says which test executes which line, and how long each takes (needs the group `mutation`):
   pytest -m "slow or not slow" --ignore tests/faults --durations=0 -vv \
     --cov robustbench_kpca --cov-context test --cov-report= | tee LOG
2. python tests/mutation/seeded_faults.py .coverage LOG --seed 57

Places are drawn by the seed, as many of each area. A fault is one operator, bound, index or name that is replaced by
another; annotations, texts, and what raises an error are left alone. The tests of the short suite come first, from the
fastest on, two of a function at most.
"""

import argparse
import ast
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from coverage import CoverageData

ROOT = Path(__file__).parents[2]
PACKAGE, TABLE = ROOT / "robustbench_kpca", Path(__file__).with_name("table.md")
AREAS = {
    "attacks": ("attacks/**/*.py", "_engine/attack_loop/**/*.py"),
    "corruptions": ("corruptions/**/*.py",),
    "metrics": ("metrics/*.py", "tasks/**/*.py"),
    "records": ("records/*.py",),
    "statistics": ("metrics/shared/*.py", "records/estimate.py", "records/trainings.py", "report/difference.py",
                   "report/ranking.py", "report/power.py"),
    "plan": ("evaluation/*.py",),
    "pages": ("report/**/*.py", "study/reproduction/**/*.py"),
    "cli": ("cli/*.py",),
}  # fmt: skip
SWAPPED = {"min": "max", "amin": "amax", "argmin": "argmax", "minimum": "maximum", "all": "any", "floor": "ceil"}
SWAPPED |= {other: name for name, other in SWAPPED.items()}
BOUNDS = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
NEGATED = {ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In}
NEGATED |= {ast.Is: ast.IsNot, ast.IsNot: ast.Is}
SIGNS = {ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult}
COUNT, SECONDS, MOST_TESTS, MOST_OF_A_FUNCTION = 60, 90, 60, 2


@dataclass(frozen=True)
class Fault:
    """`old` of one line of a file (relative to the root) becomes `new`, between two columns in bytes."""

    area: str
    file: str
    line: int
    start: int
    end: int
    old: str
    new: str

    def put_into(self, tree: Path) -> None:
        lines = (ROOT / self.file).read_bytes().splitlines(keepends=True)
        line = lines[self.line - 1]
        lines[self.line - 1] = line[: self.start] + self.new.encode() + line[self.end :]
        (tree / self.file).write_bytes(b"".join(lines))


def replacement(node: ast.AST) -> ast.AST | None:
    """Return the faulty form of an expression, or None where there is none."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in BOUNDS | NEGATED:
            return ast.Compare(node.left, [(BOUNDS | NEGATED)[type(op)]()], node.comparators)
        case ast.BinOp(left=ast.Constant(value=str()) | ast.JoinedStr()):
            return None
        case ast.BinOp(op=op) if type(op) in SIGNS:
            return ast.BinOp(node.left, SIGNS[type(op)](), node.right)
        case ast.BinOp(op=ast.Add(), right=ast.Constant(value=int() | float()) | ast.BinOp(op=ast.Mult() | ast.Div())):
            return ast.BinOp(node.left, ast.Sub(), node.right)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Name() | ast.Attribute() | ast.Call() | ast.Subscript()):
            return node.operand
        case ast.UnaryOp(op=ast.Not()):
            return node.operand
        case ast.BoolOp(op=op):
            return ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), node.values)
        case ast.Subscript(slice=ast.Constant(value=int(index))):
            return ast.Subscript(node.value, ast.Constant(index + 1), node.ctx)
        case ast.Call(func=ast.Attribute(value=value, attr="clamp" | "clip" | "clamp_"), args=args):
            module = isinstance(value, ast.Name) and value.id in ("np", "torch")
            return args[0] if module else value
        case ast.Call(func=ast.Attribute(value=value, attr=name)) if name in SWAPPED:
            return ast.Call(ast.Attribute(value, SWAPPED[name]), node.args, node.keywords)
        case ast.Call(func=ast.Name(id=name)) if name in SWAPPED:
            return ast.Call(ast.Name(SWAPPED[name]), node.args, node.keywords)
    return None


def expressions(node: ast.AST, inside: bool = False):
    """Yield the expressions of functions, but for annotations, defaults, texts and what raises or asserts."""
    match node:
        case ast.Raise() | ast.Assert() | ast.JoinedStr():
            return
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            inside, below = True, node.body
        case ast.AnnAssign():
            below = [node.value] if node.value else []
        case _:
            below = list(ast.iter_child_nodes(node))
    if inside and isinstance(node, ast.expr):
        yield node
    for child in below:
        yield from expressions(child, inside)


class Executed:
    """Which tests execute a line, from coverage's file of contexts."""

    def __init__(self, file: Path) -> None:
        self._data = CoverageData(str(file))
        self._data.read()
        self._paths = {path[path.index("robustbench_kpca/") :]: path for path in self._data.measured_files()}

    def by(self, file: str) -> dict[int, set[str]]:
        """Return line -> tests of a file."""
        lines = self._data.contexts_by_lineno(self._paths.get(file, file))
        found = {line: {context.rpartition("|")[0] for context in of if context} for line, of in lines.items()}
        return {line: tests for line, tests in found.items() if tests}


def faults(area: str, path: Path, executed: Executed) -> list[Fault]:
    """Return every fault of a file whose line some test executes."""
    text, name, found = path.read_bytes(), str(path.relative_to(ROOT)), []
    lines, known = text.splitlines(), executed.by(name)
    for node in expressions(ast.parse(text)):
        faulty = replacement(node) if node.lineno == node.end_lineno and node.lineno in known else None
        if faulty is not None:
            old = lines[node.lineno - 1][node.col_offset : node.end_col_offset].decode()
            new = f"({ast.unparse(faulty)})"
            found.append(Fault(area, name, node.lineno, node.col_offset, node.end_col_offset, old, new))
    return found


def draw(executed: Executed, seed: int) -> list[Fault]:
    """Return the faults, as many of every area, none on a line of another."""
    rng, drawn, taken = random.Random(seed), [], set()
    for number, (area, patterns) in enumerate(AREAS.items()):
        share = COUNT // len(AREAS) + (number < COUNT % len(AREAS))
        paths = sorted({path for pattern in patterns for path in PACKAGE.glob(pattern)})
        places = [fault for path in paths for fault in faults(area, path, executed)]
        rng.shuffle(places)
        for fault in places:
            if share and (fault.file, fault.line) not in taken:
                taken.add((fault.file, fault.line))
                drawn.append(fault)
                share -= 1
    return drawn


def first_failure(tree: Path, tests: list[str]) -> str:
    """Return the first test that fails in a tree, or how pytest ends; "" where all pass."""
    options = ["-x", "-q", "-n0", "-p", "no:cacheprovider", "-m", "slow or not slow", "--tb=no"]
    command, environment = [sys.executable, "-m", "pytest", *options, *tests], os.environ | {"PYTHONPATH": str(tree)}
    try:
        done = subprocess.run(command, cwd=tree, env=environment, timeout=SECONDS, capture_output=True, text=True)
    except subprocess.TimeoutExpired:
        return f"no end in {SECONDS} s"
    failed = {line.partition(" - ")[0] for line in done.stdout.splitlines()} if done.returncode else set()
    named = [test for test in tests if failed & {f"FAILED {test}", f"ERROR {test}"}]
    return (named or [f"pytest ends with {done.returncode}" if done.returncode else ""])[0]


def durations(log: Path) -> dict[str, float]:
    found: Counter[str] = Counter()
    for seconds, test in re.findall(r"^([\d.]+)s (?:call|setup)\s+(\S.*)$", log.read_text(), re.MULTILINE):
        found[test] += float(seconds)
    return found


def chosen(tests: set[str], seconds: dict[str, float]) -> list[str]:
    """Return the fastest tests, two of a function at most, while they fit the time."""
    some = []
    for _, of in groupby(sorted(tests), key=lambda test: test.partition("[")[0]):
        some += sorted(of, key=lambda test: seconds.get(test, 0))[:MOST_OF_A_FUNCTION]
    return sorted(some, key=lambda test: seconds.get(test, 0))[:MOST_TESTS]


def finder(fault: Fault, tree: Path, tests: list[str], sound: dict[str, bool]) -> str:
    """Return the first test that fails with the fault, and passes without."""
    while tests:
        fault.put_into(tree)
        found = first_failure(tree, tests)
        shutil.copyfile(ROOT / fault.file, tree / fault.file)
        if found not in tests:
            return found
        if found not in sound:
            sound[found] = first_failure(tree, [found]) == ""
        if sound[found]:
            return found
        tests = [test for test in tests if test != found]
    return ""


def collected(mark: str) -> set[str]:
    """Return the tests of a mark, as pytest names them."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n0", "-m", mark, "--ignore", "tests/faults"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return {line for line in done.stdout.splitlines() if "::" in line}


def page(rows: list[tuple[Fault, str, str]], seed: int) -> str:
    """Return how many faults of each area are found, and every fault with the test that finds it, as Markdown."""
    command = f"python tests/mutation/seeded_faults.py .coverage LOG --seed {seed}"
    lines = ["# Seeded faults", "", f"`{command}` draws the places and runs the tests.", ""]
    lines += ["| area | faults | found by `make test` | only by long tests | by none |", "|---|---|---|---|---|"]
    for area in AREAS:
        suites = Counter(suite for fault, suite, _ in rows if fault.area == area)
        lines.append(f"| {area} | {suites.total()} | {suites['short']} | {suites['long']} | {suites['none']} |")
    lines += ["", "| line | fault | found by |", "|---|---|---|"]
    for fault, suite, test in rows:
        place, found = f"{fault.file.removeprefix('robustbench_kpca/')}:{fault.line}", test.removeprefix("tests/")
        text = f"`{fault.old}` → `{fault.new}`".replace("|", "\\|")
        lines.append(f"| {place} | {text} | {found or 'no test'}{' (long)' * (suite == 'long')} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("contexts", type=Path)
    parser.add_argument("log", type=Path)
    parser.add_argument("--seed", type=int, default=57)
    asked = parser.parse_args()
    seconds, executed, rows = durations(asked.log), Executed(asked.contexts), []
    suites = {"short": collected("not slow"), "long": collected("slow")}
    sound: dict[str, bool] = {}
    with tempfile.TemporaryDirectory() as folder:
        tree, left = Path(folder) / "tree", shutil.ignore_patterns(".git", ".venv", "*cache*", "rbk-demo")
        shutil.copytree(ROOT, tree, symlinks=True, ignore=left)
        for fault in draw(executed, asked.seed):
            tests, began, suite, found = executed.by(fault.file)[fault.line], time.monotonic(), "none", ""
            for name, all_of in suites.items():
                if not found and (found := finder(fault, tree, chosen(tests & all_of, seconds), sound)):
                    suite = name
            rows.append((fault, suite, found))
            print(f"{time.monotonic() - began:4.0f} s {suite:5} {fault} {found}", flush=True)
            TABLE.write_text(page(rows, asked.seed))


if __name__ == "__main__":
    main()
