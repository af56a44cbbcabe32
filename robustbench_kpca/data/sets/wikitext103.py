"""WikiText-103: articles of Wikipedia, 103 million words to train on; `wiki.{train,valid,test}.tokens` in a folder.

See `_wikitext_files`: `wikitext103:FOLDER`.
"""

from robustbench_kpca.data.request import Request
from robustbench_kpca.data.sets._wikitext_files import Published, load_wikitext
from robustbench_kpca.data.text import Text

PUBLISHED = Published(267_735, {"train": 103_227_021, "val": 217_646, "test": 245_569})


def load(request: Request) -> Text:
    """Return `test` (the default; 245,569 words), `val` (217,646) or `train` (103,227,021), `<eos>` included."""
    return load_wikitext("wikitext103", request, PUBLISHED)
