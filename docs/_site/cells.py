"""Execute a notebook without Jupyter, and write what its cells show: python docs/_site/cells.py docs/own_network.ipynb.

A cell's last expression is shown as Jupyter shows it: as a picture, as a table in HTML, or as text.
"""

import ast
import base64
import contextlib
import io
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

SHOWS = (("image/png", "_repr_png_"), ("text/html", "_repr_html_"))


def load(path: Path) -> dict[str, Any]:
    """Return the content of a notebook."""
    content: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return content


def execute(notebook: dict[str, Any]) -> dict[str, Any]:
    """Execute all code cells in the current folder, and keep their outputs; return the names that they define."""
    names: dict[str, Any] = {"__name__": "__main__"}
    codes = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(codes, 1):
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            last = _run("".join(cell["source"]), names)
        cell["execution_count"] = number
        cell["outputs"] = [*_stream(said.getvalue()), *_result(last, number)]
    return names


def markdown(notebook: dict[str, Any]) -> str:
    """Return a notebook as a page: text, code, and what the code showed."""
    return "\n\n".join(part for cell in notebook["cells"] for part in _parts(cell)) + "\n"


def _run(code: str, names: dict[str, Any]) -> Any:
    tree = ast.parse(code)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<cell>", "exec"), names)  # noqa: S102 (our own notebook)
    return None if last is None else eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)  # noqa: S307


def _stream(text: str) -> list[dict[str, Any]]:
    return [{"output_type": "stream", "name": "stdout", "text": text.splitlines(keepends=True)}] if text else []


def _result(value: Any, number: int) -> list[dict[str, Any]]:
    if value is None:
        return []
    data: dict[str, Any] = {"text/plain": [repr(value).partition(" at 0x")[0]]}
    for kind, method in SHOWS:
        if shown := getattr(value, method, lambda: None)():
            data[kind] = (
                base64.b64encode(shown).decode() if isinstance(shown, bytes) else shown.splitlines(keepends=True)
            )
    return [{"output_type": "execute_result", "execution_count": number, "metadata": {}, "data": data}]


def _parts(cell: dict[str, Any]) -> list[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return [source]
    return [f"```python\n{source}\n```", *map(_shown, cell["outputs"])]


def _shown(output: dict[str, Any]) -> str:
    data = output.get("data", {})
    if "image/png" in data:
        return f'<img alt="what the cell shows" src="data:image/png;base64,{data["image/png"]}">'
    if "text/html" in data:
        return "".join(data["text/html"])
    return f"```text\n{''.join(output.get('text') or data['text/plain']).rstrip()}\n```"


def main(path: Path) -> None:
    """Execute a notebook in an empty folder, and write it with its outputs."""
    notebook, home = load(path), Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        execute(notebook)
        os.chdir(home)
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
