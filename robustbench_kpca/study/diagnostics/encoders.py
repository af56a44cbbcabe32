"""Text encoders of the library `transformers`, trained or untrained, and texts as their tokens."""

import importlib
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from robustbench_kpca._core.errors import BadInputError, reason_of
from robustbench_kpca.study.diagnostics.lists import configuration
from robustbench_kpca.study.diagnostics.sources import MOST_TOKENS, TextSource

LEAST_CHARACTERS = 30
WORDS = 2000
"""Size of the vocabulary of an untrained encoder."""
_RESERVED = 10


def load_text_model(
    name: str, file: Path, limit: int, *, untrained: bool = False, options: Mapping[str, Any] | None = None
) -> tuple[Any, TextSource]:
    """Load an encoder and its tokeniser with `transformers`, and the first `limit` texts of a file, one per line.

    As in the study, only lines of more than 30 characters are used, truncated to 128 tokens. Only texts of equal length
    can serve as each other's null model.

    Args:
        name: a name of the Hugging Face hub, or a folder.
        untrained: random weights of seed 0, for the configuration of a folder or of a list in `lists`; the
            tokens are then hashes of words.
        options: fields of the configuration, such as `num_hidden_layers`; for untrained encoders only.

    Raises:
        BadInputError: `transformers` is missing, the model cannot be loaded, or the file has no such lines.
    """
    try:
        library: Any = importlib.import_module("transformers")
    except ImportError:
        raise BadInputError(
            f"model 'transformers:{name}' needs the package transformers, which is not installed",
            fix="pip install transformers",
        ) from None
    if options and not untrained:
        raise BadInputError(f"'{next(iter(options))}' of a trained encoder cannot be set", fix="add --untrained")
    texts = _lines(file)[:limit]
    if untrained:
        return _untrained(library, name, dict(options or {}), file.stem, texts)
    try:
        model = library.AutoModel.from_pretrained(name).eval()
        tokenizer = library.AutoTokenizer.from_pretrained(name)
    except Exception as error:  # noqa: BLE001 (the hub fails in many ways)
        raise BadInputError(
            f"transformers model '{name}' could not be loaded ({reason_of(error)})",
            fix="check the name and the network, or give a folder",
        ) from None
    made = tokenizer(texts, truncation=True, max_length=MOST_TOKENS)["input_ids"]
    return model, TextSource(file.stem, tuple(tuple(row) for row in made), tokenizer.pad_token_id or 0)


def _lines(file: Path) -> list[str]:
    try:
        lines = [line.strip() for line in file.read_text("utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise BadInputError(
            f"cannot read texts {file} ({reason_of(error)})", expected="a text file, one text per line"
        ) from None
    texts = [line for line in lines if len(line) > LEAST_CHARACTERS]
    if not texts:
        raise BadInputError(f"{file} has no line of more than {LEAST_CHARACTERS} characters")
    return texts


def _untrained(library: Any, name: str, options: dict[str, Any], data: str, texts: list[str]) -> tuple[Any, TextSource]:
    config = _config(library, name)
    for key, value in {"vocab_size": WORDS, "entity_vocab_size": 2, **options}.items():
        if hasattr(config, key):
            setattr(config, key, value)
        elif key in options:
            raise BadInputError(f"'{key}' is no field of {type(config).__name__}", fix="check --set model.KEY=VALUE")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = library.AutoModel.from_config(config).eval()
    rows = tuple(tuple(_number(word, config.vocab_size) for word in text.split()[:MOST_TOKENS]) for text in texts)
    return model, TextSource(data, rows, config.pad_token_id or 0)


def _config(library: Any, name: str) -> Any:
    if Path(name).is_dir():
        try:
            return library.AutoConfig.from_pretrained(name, local_files_only=True)
        except Exception as error:  # noqa: BLE001 (it fails in many ways)
            met = f"no configuration in {name} ({reason_of(error)})"
            raise BadInputError(met, expected="a folder with a config.json") from None
    return library.AutoConfig.for_model(**configuration(f"transformers:{name}"))


def _number(word: str, count: int) -> int:
    """Return a token id that depends on the word alone, and is no special one."""
    return _RESERVED + zlib.crc32(word.encode()) % (count - _RESERVED)
