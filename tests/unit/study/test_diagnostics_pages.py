"""Pages made of diagnoses: complete, escaped, deterministic, and without torch."""

import json
import re
import subprocess
import sys
from html import unescape

import pytest
import torch
from diagnosed import diagnosed

from robustbench_kpca import create_model, load_data, load_model
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.web.as_html import html
from robustbench_kpca._core.web.as_markdown import markdown
from robustbench_kpca.cli.main import main
from robustbench_kpca.models.checkpoint import save_checkpoint
from robustbench_kpca.study.diagnostics import figures, pages
from robustbench_kpca.study.diagnostics.diagnosis import Diagnosis, load_diagnosis
from robustbench_kpca.study.diagnostics.epochs import TERMS, load_trajectory
from robustbench_kpca.study.diagnostics.figures import trajectory
from robustbench_kpca.study.diagnostics.sources import ImageSource
from robustbench_kpca.study.diagnostics.trajectory import over_training

CLAIMS = ("decomposition", "gamma", "planted", "primal_objective")


@pytest.fixture(scope="module")
def done() -> Diagnosis:

    source = ImageSource(load_data("digits", "test", 4).in_order())
    return diagnosed(
        load_model("rpc_symvit_digits"), source, name="rpc_symvit_digits",
        claims=CLAIMS, layers=(0,), block=4,
    )  # fmt: skip


@pytest.fixture(scope="module")
def small(done) -> Diagnosis:
    """The same with one claim: fewer figures to draw."""
    return done.model_copy(update={"claims": {"gamma": done.claims["gamma"]}})


def words(page):
    return " ".join(unescape(re.sub("<[^>]+>", " ", page)).split())


def test_pages_of_a_model_are_whole_and_ask_for_nothing(done):
    page = html(pages.document(done))
    text = words(page)
    assert set(re.findall('<a href="#([^"]+)"', page)) == set(done.claims) <= set(re.findall(' id="([^"]+)"', page))
    for judged in done.claims.values():
        for part in (judged.title, judged.source, judged.outcome, judged.why, *judged.statistics):
            assert " ".join(part.split()) in text, part
    assert done.protocol_digest[:16] in text
    assert "SPLIT_RESIDUAL 0.1" in text
    for text in (markdown(pages.document(done)), markdown(pages.comparison({"a": done, "b": done}))):
        for block in text.split("\n\n"):
            rows = [line for line in block.splitlines() if line.startswith("|")]
            assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows}) <= 1, block
        assert r"\|K - L - S\| / \|K\|" in text
    assert "## The pursuit splits the keys: K = L + S: **not supported**" in markdown(pages.document(done))
    fewer = done.model_copy(update={"claims": {"gamma": done.claims["gamma"]}})
    text = words(html(pages.comparison({"a": done, "b": fewer})))
    assert "not measured" in text
    assert "not testable" in text  # there is no Primal layer


def test_the_command_writes_pages_and_compares(tmp_path, capsys):
    one, both = tmp_path / "one", tmp_path / "both"
    arguments = ["rpc_symvit_digits", "--claim", "decomposition", "--images", "2", "--quiet"]
    assert main(["diagnose", *arguments, "-o", str(one)]) == 0
    files = {"diagnosis.json", "README.md", "index.html", "layers.csv", "profiles.csv"}
    assert {path.name for path in one.iterdir()} == files
    assert (one / "index.html").read_text().startswith(html(pages.document(load_diagnosis(one))))
    assert main(["diagnose", "--compare", str(one), "--compare", str(one), "-o", str(both)]) == 0
    assert {path.name for path in both.iterdir()} == {"README.md", "index.html"}
    for wrong in (["--compare", str(one)], ["x", "--compare", str(one), "-o", str(both)], [], ["--compare", "nowhere"]):
        capsys.readouterr()
        assert main(["diagnose", *wrong]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1


def test_no_page_of_another_kind_is_replaced(small, tmp_path, capsys):
    own, both, foreign = (tmp_path / name for name in ("own", "both", "foreign"))
    small.save(own)
    pages.write_pages(small, own)
    pages.write_pages(small, own)  # its own it replaces
    before = (own / "index.html").read_bytes()
    assert main(["diagnose", "--compare", str(own), "-o", str(own), "-q"]) == 2
    assert (own / "index.html").read_bytes() == before
    pages.write_comparison([small], both)
    with pytest.raises(BadInputError, match="replace"):
        pages.write_pages(small, both)
    foreign.mkdir()
    (foreign / "README.md").write_text("mine")
    assert main(["diagnose", "vit_digits", "--images", "2", "-o", str(foreign), "-q"]) == 2
    assert "replace" in capsys.readouterr().err.splitlines()[-1]
    assert [path.name for path in foreign.iterdir()] == ["README.md"]
    assert (foreign / "README.md").read_text() == "mine"


def test_comparisons_say_what_is_not_alike_and_what_is_missing(small, tmp_path):
    def changed(**update):
        return small.model_copy(update={"protocol": small.protocol.model_copy(update=update)})

    limits = small.protocol.thresholds | {"ALIGNED": 0.1}
    assert "Same limits" in markdown(pages.comparison({"a": small, "b": small}))
    for other, what in ((changed(thresholds=limits), "limits (ALIGNED)"), (changed(images=3), "numbers of samples")):
        page = html(pages.comparison({"a": small, "b": other}))
        assert f"NOT ALIKE: different {what}." in words(page)
    data = small.model_copy(update={"data": small.data.model_copy(update={"digest": "0" * 64})})
    assert "NOT ALIKE: different data" in markdown(pages.comparison({"a": small, "b": data}))
    with pytest.raises(BadInputError, match="--keep-every"):
        over_training(tmp_path, "digits", ["test"], 2)


def test_any_name_can_be_drawn_without_a_request(small):
    assert figures.across_models({r"m $\foo$ 模型 \U0001f600 a_b^c": small}).startswith("<svg")
    for text in (html(pages.document(small)), html(pages.comparison({"a": small}))):
        assert not re.search(r"@import|url\((?!#)|<script|<link|<img| src=|<a href=\"(?!#)", text)


def test_pages_need_no_torch(small, tmp_path):
    small.save(tmp_path)
    code = f"""
import sys
from robustbench_kpca.cli.main import main
assert main(["diagnose", "--compare", {str(tmp_path)!r}, "-o", {str(tmp_path / "out")!r}, "--quiet"]) == 0
assert not {{"torch", "timm", "torchvision"}} & set(sys.modules)
"""
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert made.returncode == 0, made.stderr
    assert (tmp_path / "out" / "index.html").is_file()


@pytest.mark.usefixtures("fork")
def test_the_projection_loss_over_training(tmp_path):
    model, runs = create_model("symvit_digits", depth=2), tmp_path / "runs"

    def save(epoch):
        header = {"config": json.dumps(model.config)}
        save_checkpoint(runs / f"symvit_digits.epoch-{epoch:03d}.safetensors", model, header)

    for epoch in (1, 2, 10):
        with torch.no_grad():
            model.blocks[0].attn.qkv.weight[48:] *= 2  # |h|^2 of the first layer grows fourfold
        save(epoch)
    found = over_training(runs, "digits", ["train", "test"], 7)
    found.save(tmp_path / "out")
    assert load_trajectory(tmp_path / "out") == found
    assert [course.data.split for course in found.courses] == ["train", "test"]
    assert found.courses[0].data.digest != found.courses[1].data.digest
    epochs = found.courses[1].epochs
    assert [one.epoch for one in epochs] == [1, 2, 10]
    for one in epochs:  # the signed value is the difference of both terms
        assert one.mean("scaled_signed") == pytest.approx(one.mean("phi") - one.mean("h"))
    assert trajectory(found).count('id="axes_') == len(TERMS)
    first = [one.by_layer["log10_h"][0] for one in epochs]
    assert torch.tensor(first).diff().tolist() == pytest.approx([0.602, 0.602], abs=0.02)
    assert len({one.by_layer["log10_phi"][0] for one in epochs}) == 1  # q and k of that layer stay
    with pytest.raises(BadInputError, match="same images"):
        over_training(runs, "digits", ["test", "test"], 2)
    with torch.no_grad():
        model.blocks[1].attn.qkv.weight[0] = torch.nan
    save(11)
    with pytest.raises(BadInputError, match="layer 1"):
        over_training(runs, "digits", ["test"], 2)
