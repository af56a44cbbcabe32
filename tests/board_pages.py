"""What the HTML page of a board shows, read back."""

import html
import re
from pathlib import Path


def commands(page: Path) -> list[str]:
    """Return the commands of its cells, in their order."""
    return [html.unescape(command) for command in re.findall(r'<code class="command">(.*?)</code>', page.read_text())]
