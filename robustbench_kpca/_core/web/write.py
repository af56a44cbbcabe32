"""Write a page's two files beside each other."""

from pathlib import Path

from robustbench_kpca._core.files import write_atomic
from robustbench_kpca._core.web.as_html import html
from robustbench_kpca._core.web.as_markdown import markdown
from robustbench_kpca._core.web.document import PAGE, README, Document, Figure


def write_page(page: Document, folder: Path) -> list[Path]:
    """Write README.md, index.html and the files of figures that have one, each whole or not at all."""
    drawn = [block for block in page.blocks if isinstance(block, Figure) and block.file]
    files = {figure.file: figure.svg.replace("<svg ", '<svg style="background: #fff" ', 1) for figure in drawn}
    texts = files | {README: markdown(page), PAGE: html(page)}
    for name, text in texts.items():
        write_atomic(folder / name, text.encode())
    return [folder / README, folder / PAGE]
