"""WikiText-2: the first 2 million words of the same articles, with a smaller vocabulary; `wikitext2:FOLDER`.

Held-out parts are those of WikiText-103, with more `<unk>`. See `_wikitext_files`.
"""

from robustbench_kpca.data.request import Request
from robustbench_kpca.data.sets._wikitext_files import Published, load_wikitext
from robustbench_kpca.data.text import Text

PUBLISHED = Published(33_278, {"train": 2_088_628, "val": 217_646, "test": 245_569})


def load(request: Request) -> Text:
    """Return `test` (the default; 245,569 words), `val` (217,646) or `train` (2,088,628), `<eos>` included."""
    return load_wikitext("wikitext2", request, PUBLISHED)
