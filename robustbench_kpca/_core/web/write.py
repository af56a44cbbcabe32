"""Write a page's two files beside each other."""

from pathlib import Path

from robustbench_kpca._core.files import write_atomic
from robustbench_kpca._core.web.as_html import html
from robustbench_kpca._core.web.as_markdown import markdown
from robustbench_kpca._core.web.document import PAGE, README, Document, Figure
from robustbench_kpca._core.web.figures import on_white


def write_page(page: Document, folder: Path) -> list[Path]:
    """Write README.md, index.html and the files of figures that have one, each whole or not at all."""
    drawn = [block for block in page.blocks if isinstance(block, Figure) and block.file]
    files = {figure.file: on_white(figure.svg) for figure in drawn}
    files |= {README: markdown(page).encode(), PAGE: html(page).encode()}
    for name, content in files.items():
        write_atomic(folder / name, content)
    return [folder / README, folder / PAGE]
