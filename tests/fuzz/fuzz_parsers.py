"""The parsers that `fuzz.py` feeds, with valid inputs of each."""

import io
import json
import lzma
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save

from robustbench_kpca import evaluate, load_data, load_model
from robustbench_kpca._core.files import sha256
from robustbench_kpca._core.strict import parse_assignments, parse_fraction
from robustbench_kpca._engine.inference.journal import Journal
from robustbench_kpca.audit.run import audit
from robustbench_kpca.data.io.folder import Folder
from robustbench_kpca.data.io.labelling import read_table
from robustbench_kpca.data.io.reading import read_rgb
from robustbench_kpca.data.io.text_table import LABEL, TEXT, read_rows
from robustbench_kpca.data.io.ts_file import read_ts
from robustbench_kpca.models.weights_file import read_state
from robustbench_kpca.protocols.loading import load_scenario
from robustbench_kpca.protocols.presets import find
from robustbench_kpca.records.audit import load_audit
from robustbench_kpca.records.images import ImagesFile, KeptImages, load_images
from robustbench_kpca.records.outcomes import Outcomes
from robustbench_kpca.records.record import find_records, load_record
from robustbench_kpca.records.spot_check import load_spot_check
from robustbench_kpca.records.text import MOST, unpack
from robustbench_kpca.report.matching import load_board
from robustbench_kpca.study.reproduction.pack import load_pack
from robustbench_kpca.training.chosen_classes import class_numbers
from robustbench_kpca.training.recipe import load_recipe
from robustbench_kpca.training.schedules import read_recipe

Parse = Callable[[bytes], object]


@dataclass
class Parser:
    """What is fed: how, valid inputs, and how many inputs."""

    name: str
    parse: Parse
    seeds: list[bytes]
    inputs: int


def read_texts(path: Path) -> object:
    return list(read_rows(path, TEXT, LABEL))


def at(path: Path, read: Callable[[Path], object]) -> Parse:
    """Write the input to a file, and read that."""
    path.parent.mkdir(parents=True, exist_ok=True)

    def parse(data: bytes) -> object:
        path.write_bytes(data)
        return read(path)

    return parse


def as_text(read: Callable[[str], object]) -> Parse:
    """Hand the input over as text, as a command line does."""
    return lambda data: read(data.decode("utf-8", "surrogateescape"))


def all_parsers(folder: Path) -> list[Parser]:
    """Return every parser; files are written below `folder`."""
    return [*_texts(folder), *_tables(folder), *_records(folder), *_images(folder), *_weights(folder)]


def _texts(folder: Path) -> list[Parser]:
    attacks, corruptions = find("attacks"), find("corruptions")
    names = ("pgd20-linf-8_255", "autoattack-linf-8_255", "fgsm-linf-8_255")
    protocols = [attacks[name].read_bytes() for name in names]
    protocols.append(corruptions["imagenet-c"].read_bytes())
    boards = find("leaderboards")
    recipe = read_recipe("rpc_symvit_segmenter_tiny")[1].encode()
    pack, items = folder / "pack", folder / "items"
    pack.mkdir(parents=True)
    items.mkdir()
    source = find("packs")["chen2023"].parent
    for path in source.glob("*.toml"):
        for copy in (pack, items):
            (copy / path.name).write_bytes(path.read_bytes())
    item = next(path for path in sorted(source.glob("*.toml")) if path.name != "pack.toml")
    numbers = [b"8/255", b"0.03", b"1e-3", b"255", b"3 / 255", b"0.25 eps"]
    settings = [b"eps=8/255", b"steps=40", b"names=['a', 'b']", b"grid.severities=[1, 2]", b"a=true"]
    return [
        Parser("numbers and fractions", as_text(parse_fraction), numbers, 600_000),
        Parser("settings KEY=VALUE", as_text(lambda text: parse_assignments([text])), settings, 200_000),
        Parser("protocol TOML", at(folder / "p.toml", lambda path: load_scenario(str(path))), protocols, 30_000),
        Parser("board.toml", at(folder / "board" / "board.toml", lambda path: load_board(str(path.parent), [])),
               [boards["digits"].read_bytes(), boards["waves"].read_bytes()], 10_000),
        Parser("recipe TOML", at(folder / "r.toml", lambda path: load_recipe(str(path))), [recipe], 10_000),
        Parser("reproduction pack", at(pack / "pack.toml", lambda path: load_pack(str(path.parent))),
               [(source / "pack.toml").read_bytes()], 5_000),
        Parser("item of a pack", at(items / item.name, lambda path: load_pack(str(path.parent))),
               [item.read_bytes()], 5_000),
    ]  # fmt: skip


def _tables(folder: Path) -> list[Parser]:
    texts = b"sentence\tlabel\n" + b"a good film\tpositive\nnot so good\tnegative\n" * 3
    commas = b'text,label\n"so, so",0\nfine,1\n'
    series = (b"#comment\n@problemName Two\n@timeStamps false\n@missing false\n@univariate false\n@dimensions 2\n"
              b"@equalLength true\n@seriesLength 3\n@classLabel true a b\n@data\n1,2,3:4,5,6:a\n"
              b"2,?,1:0,1,2:b\n")  # fmt: skip
    classes = b"id,name\n0,road\n1,tree\n7,ignore\n"
    labels = b"file,label\na.png,0\nb.png,1\n"
    labelled = folder / "labelled"
    labelled.mkdir()
    for name in ("a.png", "b.png"):
        (labelled / name).write_bytes(_encoded("PNG"))
    return [
        Parser("texts .tsv", at(folder / "t.tsv", read_texts), [texts], 30_000),
        Parser("texts .csv", at(folder / "t.csv", read_texts), [commas], 30_000),
        Parser("time series .ts", at(folder / "X_TRAIN.ts", read_ts), [series], 20_000),
        Parser("classes.csv of masks", at(folder / "classes.csv", read_table), [classes], 20_000),
        Parser("labels.csv", at(labelled / "labels.csv", lambda path: Folder(path.parent)), [labels], 10_000),
        Parser("list of classes", at(folder / "c.txt", lambda path: class_numbers(str(path))), [b"n1\nn2\n"], 20_000),
    ]  # fmt: skip


def _records(folder: Path) -> list[Parser]:
    data = load_data("digits", limit=8)
    images, labels = data.tensors()
    kept = folder / "records"
    model = load_model("vit_digits")
    evaluate(model, images, labels, protocol="fgsm-linf-8_255", out=kept, audit=False, batch_size=8)
    (path,) = find_records(kept)
    record, given = load_record(path), path.read_bytes()
    table, stored = record.outcomes.table, record.outcomes.to_csv()
    audit_file = audit(model, images, labels, out=folder, batch_size=8, level="quick")
    (audited,) = (folder / "audits").glob("*.audit.json")
    assert audit_file.checks
    adversarial = KeptImages(("0", "1"), np.zeros((2, 3, 4, 4), np.uint8), np.ones((2, 3, 4, 4), np.float32))

    def read_images(data: bytes) -> object:
        (folder / "i.images.npz").write_bytes(data)
        return load_images(folder, ImagesFile(file="i.images.npz", sha256=sha256(data), samples=2)).floats()

    plain = io.BytesIO()
    np.savez(plain, samples=np.array(("0", "1")), clean=adversarial.clean, attacked=adversarial.attacked)
    where = "table"
    journal = Journal(folder / "j", "spec")
    journal.write({"rows": {"0": {"label": 1, "x": torch.zeros(2)}}})
    checked = folder / "spot-check.json"

    def read_outcomes(data: bytes) -> Outcomes:
        return Outcomes.from_text(unpack(data, MOST, where), table, where)

    return [
        Parser("record JSON", at(path, load_record), [given], 30_000),
        Parser("table .csv.xz", read_outcomes, [lzma.compress(stored)], 30_000),
        Parser("table .csv", lambda data: Outcomes.from_text(data, table, where), [stored], 40_000),
        Parser("audit JSON", at(audited, load_audit), [audited.read_bytes()], 20_000),
        Parser("images .npz", read_images, [adversarial.to_file(), plain.getvalue()], 30_000),
        Parser("journal", at(folder / "j", lambda path: Journal(path, "spec").read()), [journal.path.read_bytes()],
               10_000),
        Parser("spot-check.json", at(checked, load_spot_check), [SPOT_CHECK], 20_000),
    ]  # fmt: skip


SPOT_CHECK = json.dumps(
    {
        "schema_version": 1, "samples": 24, "seed": 1,
        "records": {"a": {"model": "m", "protocol": "p", "outcomes": "0" * 64, "checked": "2026-11-22", "total": 360,
                          "samples": 24, "rows": 24, "differing": 0, "exact": True, "why": ""}},
    }
).encode()  # fmt: skip


def _encoded(form: str, size: tuple[int, int] = (9, 7), **options: Any) -> bytes:
    pixels = np.random.default_rng(0).integers(1, 256, (*size, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, form, **options)
    return file.getvalue()


def _images(folder: Path) -> list[Parser]:
    palette = io.BytesIO()
    Image.fromarray(np.arange(63, dtype=np.uint8).reshape(9, 7)).convert("P").save(palette, "PNG")
    forms = {
        "PNG": ([_encoded("PNG"), palette.getvalue()], 20_000), "JPEG": ([_encoded("JPEG")], 20_000),
        "BMP": ([_encoded("BMP")], 20_000), "WEBP": ([_encoded("WEBP"), _encoded("WEBP", lossless=True)], 20_000),
        "GIF": ([_encoded("GIF")], 20_000), "TIFF": ([_encoded("TIFF")], 20_000),
    }  # fmt: skip
    return [
        Parser(f"{form} image", at(folder / f"x.{form.lower()}", lambda path: read_rgb(path).load()), *given)
        for form, given in forms.items()
    ]


def _weights(folder: Path) -> list[Parser]:
    state = {"a.weight": torch.zeros(3, 2), "a.bias": torch.ones(3)}
    saved = io.BytesIO()
    torch.save({"state_dict": state, "epoch": 3}, saved)
    head = json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    own = struct.pack("<Q", len(head)) + head + bytes(8)
    return [
        Parser("safetensors", at(folder / "w.safetensors", read_state), [save(state), own], 40_000),
        Parser("torch checkpoint", at(folder / "w.pt", read_state), [saved.getvalue()], 10_000),
    ]
