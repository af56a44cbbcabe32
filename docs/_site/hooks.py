"""What the site shows: the repository's pages at their own paths, catalogues and the API.

mkdocs reads one folder; our pages lie beside what they are about (`attacks/README.md`, `leaderboards/*/README.md`). So
`on_files` hands mkdocs the pages of the whole repository, and their relative links work unchanged.
"""

import json
import os
import re
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import cells
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
PAGES = (
    "*.md", "docs/**/*.md", "docs/**/*.png", "docs/**/*.svg", "attacks/README.md", "corruptions/README.md",
    "benchmarks/*.md", "tests/*/README.md", "leaderboards/**/*.md", "leaderboards/**/*.html", "leaderboards/**/*.svg",
    "leaderboards/**/*.png", "leaderboards/**/*.csv",
)  # fmt: skip
SHELVES = ("models", "attacks", "corruptions", "data", "protocols", "metrics", "boards", "packs", "recipes")
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)#:\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Replace the files of `docs/` by the pages of the repository, and add what is generated."""
    shown = Files([file for file in files if file.src_dir != config.docs_dir])
    for path in sorted({path for pattern in PAGES for path in ROOT.glob(pattern)}):
        name = path.relative_to(ROOT).as_posix()
        # A board's README.md becomes its index.html, so the board itself moves to board.html.
        target = name.removesuffix("index.html") + "board.html" if path.name == "index.html" else None
        shown.append(File(name, str(ROOT), config.site_dir, config.use_directory_urls, dest_uri=target))
    for shelf in SHELVES:
        shown.append(File.generated(config, f"catalogue/{shelf}.md", content=catalogue(shelf)))
    shown.append(File.generated(config, "api.md", content=api()))
    for path in sorted(ROOT.glob("docs/*.ipynb")):
        page = path.relative_to(ROOT).with_suffix(".md").as_posix()
        shown.append(File.generated(config, page, content=cells.markdown(cells.load(path))))
    config.nav = _expand(config.nav or [], [file.src_uri for file in shown])
    return shown


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Turn links to files that are no pages, such as source code, into their text."""
    here = Path(page.file.src_uri).parent

    def shown(match: re.Match[str]) -> str:
        target = (ROOT / here / match[2]).resolve()
        if not target.is_relative_to(ROOT) or not target.exists():
            return match[0]  # a broken link: mkdocs reports it
        name = target.relative_to(ROOT).as_posix()
        if files.get_file_from_path(name) is not None:
            return match[0]
        if name.endswith(".ipynb"):
            return f"[{match[1]}]({match[2].removesuffix('.ipynb')}.md)"
        for index in ("README.md", "index.html"):
            if files.get_file_from_path(f"{name}/{index}") is not None:
                return f"[{match[1]}]({match[2].rstrip('/')}/{index}{match[3] or ''})"
        return match[1]

    return LINK.sub(shown, markdown)


def catalogue(shelf: str) -> str:
    """Return the page that shows what `rbk list SHELF` prints."""
    command = [os.environ.get("RBK_PYTHON", sys.executable), "-m", "robustbench_kpca", "list", shelf, "--json"]
    rows = json.loads(subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout)
    heads = list(rows[0])
    lines = [f"# {shelf.capitalize()}", "", f"`rbk list {shelf}`", "", _row(heads), _row(["---"] * len(heads))]
    return "\n".join([*lines, *(_row(row[head] for head in heads) for row in rows), ""])


def _row(cells: Any) -> str:
    return "| " + " | ".join(str(cell).replace("|", r"\|").replace("\n", " ") for cell in cells) + " |"


def api() -> str:
    """Return the page of the public names, from their docstrings."""
    sys.path.insert(0, str(ROOT))  # importing the package imports nothing else
    import robustbench_kpca

    names = [f"::: robustbench_kpca.{robustbench_kpca._MODULES[n]}.{n}" for n in robustbench_kpca.__all__]  # noqa: SLF001
    return "\n\n".join(["# Python API", "Everything here is imported from `robustbench_kpca`.", *names, ""])


def _expand(nav: list[Any], pages: list[str]) -> list[Any]:
    """Replace patterns such as `catalogue/*.md` by the pages that match."""
    expanded: list[Any] = []
    for entry in nav:
        if isinstance(entry, dict):
            lists = {title: isinstance(inside, list) for title, inside in entry.items()}
            expanded.append({t: _expand(inside, pages) if lists[t] else inside for t, inside in entry.items()})
        elif "*" in entry:
            depth = entry.count("/")
            expanded += [page for page in pages if fnmatch(page, entry) and page.count("/") == depth]
        else:
            expanded.append(entry)
    return expanded
