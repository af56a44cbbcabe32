"""Draw the pictures of the docs from committed files: python docs/_site/pictures.py [FOLDER]."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt

ROOT = Path(__file__).parents[2]
BOARDS = ROOT / "leaderboards"
GOOD, HALF, BAD, DARK = "#3f7d5a", "#d9a441", "#b5523b", "#2f4b7c"


def coverage(axes: Any) -> None:
    """Draw how many rows of leaderboards/coverage.md run, are compared and are made, by paper."""
    text = (BOARDS / "coverage.md").read_text("utf-8")
    rows = re.findall(r"^\| (.+? \(20\d\d\)).*? \| \d+" + r" \| (\d+)" * 5 + r" \|$", text, re.M)[::-1]
    bars = {  # label: column, colour, place
        "runs": (1, GOOD, 0.25), "in part": (2, HALF, 0.25), "no": (3, BAD, 0.25),
        "compared": (4, DARK, 0), "made": (5, "#8a8a8a", -0.25),
    }  # fmt: skip
    left = [0] * len(rows)
    for label, (column, colour, up) in bars.items():
        widths, places = [int(row[column]) for row in rows], [place + up for place in range(len(rows))]
        left = left if up > 0 else [0] * len(rows)
        axes.barh(places, widths, 0.25, left=left, label=label, color=colour)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axes.set_yticks(range(len(rows)), [row[0] for row in rows])
    axes.set_xlabel("tables, figures, equations, recipes and claims")
    axes.legend(frameon=False)


def protocol(axes: Any) -> None:
    """Draw what SymViT keeps under each attack, literal and corrected (leaderboards/teo2024/table-2)."""
    cells = _cells(BOARDS / "teo2024" / "table-2", "SymViT")
    attacks = ["PGD", "FGSM", "SPSA", "SLD", "AutoAttack", "C&W", "Noise"]
    for offset, (kind, colour) in enumerate((("literal", HALF), ("corrected", DARK))):
        values = [100 * cells[f"{attack} top-1, {kind}"]["value"] for attack in attacks]
        axes.bar([place + 0.4 * offset for place in range(len(attacks))], values, 0.4, label=kind, color=colour)
    axes.set_xticks([place + 0.2 for place in range(len(attacks))], attacks)
    axes.set_ylabel("images kept (%)")
    axes.legend(frameon=False, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1))


def spot_check(axes: Any) -> None:
    """Draw how likely a check of k random rows finds one of the forged ones."""
    rows = range(1, 101)
    for share, colour in ((0.3, GOOD), (0.1, DARK), (0.03, BAD)):
        axes.plot(
            rows, [100 * (1 - (1 - share) ** k) for k in rows], label=f"{share:.0%} of the rows forged", color=colour
        )
    axes.axvline(24, color="gray", linestyle=":")
    axes.set_xlabel("rows made again (the default of a board is 24)")
    axes.set_ylabel("chance to find one (%)")
    axes.legend(frameon=False)


def shards(axes: Any) -> None:
    """Draw twelve shards on four workers in a plain queue; the second worker is lost at time 5."""
    free, waiting, lost = dict.fromkeys((1, 2, 3, 4), 0.0), [(shard, 2 + shard % 3) for shard in range(1, 13)], 5.0
    while waiting:
        shard, length = waiting.pop(0)
        worker = min(free, key=lambda name: free[name])
        start, cut = free[worker], worker == 2 and free[worker] + length > lost
        width = lost - start if cut else length
        axes.barh(f"worker {worker}", width, left=start, color=BAD if cut else DARK, edgecolor="white")
        axes.text(start + width / 2, f"worker {worker}", f"{shard}", color="white", ha="center", va="center")
        free[worker] = start + width
        if cut:
            del free[worker]
            waiting.insert(0, (shard, length - width))
    axes.set_xlabel("time")


def members(axes: Any) -> None:
    """Draw where your own members take part in an evaluation."""
    axes.axis("off")
    axes.set(xlim=(0, 10), ylim=(0, 2))
    places = {"data set": 0.8, "corruption": 2.9, "attack": 4.9, "model with\nattention": 6.9, "metric": 9.1}
    for name, x in places.items():
        style = {"boxstyle": "round,pad=0.5", "facecolor": DARK, "edgecolor": "none"}
        axes.text(x, 1, name, ha="center", va="center", color="white", bbox=style)
    arrow = {"arrowstyle": "->", "color": "gray"}
    there, back = (5.5, 6.1, 1.25, "images"), (6.1, 5.5, 0.75, "gradients")
    for left, right, up, word in ((1.5, 2.1, 1, ""), (3.7, 4.3, 1, ""), there, back, (7.7, 8.5, 1, "outcomes")):
        axes.annotate("", (right, up), (left, up), arrowprops=arrow)
        axes.text((left + right) / 2, up + (0.15 if up >= 1 else -0.35), word, ha="center", fontsize=7)


def _cells(folder: Path, row: str) -> dict[str, Any]:
    """Return the cells of a row of a board by the titles of their columns."""
    board = json.loads((folder / "board.json").read_text("utf-8"))
    [cells] = [one["cells"] for one in board["rows"] if one["model"] == row]
    return {cell["column"]: cell for cell in cells if cell}


PICTURES = {
    "coverage": (coverage, (7, 2.2)),
    "protocol": (protocol, (7, 2.8)),
    "spot_check": (spot_check, (7, 2.6)),
    "shards": (shards, (7, 2.2)),
    "members": (members, (7, 1.4)),
}


def main(folder: Path) -> None:
    """Write every picture as an SVG of the same bytes for the same versions."""
    mpl.rcParams.update({"svg.hashsalt": "docs", "svg.fonttype": "none", "font.size": 9, "axes.spines.top": False,
                         "axes.spines.right": False})  # fmt: skip
    for name, (draw, size) in PICTURES.items():
        figure, axes = plt.subplots(figsize=size, layout="constrained")
        draw(axes)
        figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
        plt.close(figure)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "images")
