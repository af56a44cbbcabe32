"""Pages made of diagnoses: complete, escaped, deterministic, and without torch."""

import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from diagnosed import diagnosed

from robustbench_kpca import load_data, load_model
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.web.as_html import html
from robustbench_kpca._core.web.as_markdown import markdown
from robustbench_kpca.cli.main import main
from robustbench_kpca.records.estimate import Estimate
from robustbench_kpca.records.record import load_record
from robustbench_kpca.study.diagnostics import ablation, figures, pages
from robustbench_kpca.study.diagnostics.diagnosis import (
    Diagnosis,
    Judged,
    LayerProfile,
    Measured,
    Profile,
    Unit,
    load_diagnosis,
)
from robustbench_kpca.study.diagnostics.sources import ImageSource

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


class Page(HTMLParser):
    """Collects tags, links and text; fails on tags that do not close."""

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.links, self.text, self.outside = [], set(), [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.outside += [value for key in ("src", "srcset", "action") if (value := found.get(key))]
        self.outside += [found.get("href")] if tag in ("link", "script", "image") else []
        if tag == "a":
            self.links.append(found["href"])
        if "id" in found:
            self.ids.add(found["id"])
        if tag not in ("meta", "link", "br", "img"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def model_html(done):
    return html(pages.document(done))


def model_markdown(done):
    return markdown(pages.document(done))


def comparison_html(named):
    return html(pages.comparison(named))


def comparison_markdown(named):
    return markdown(pages.comparison(named))


def test_the_page_of_a_model_says_everything(done):
    page = Page(model_html(done))
    text = " ".join(" ".join(page.text).split())
    assert not page.open
    assert {link.removeprefix("#") for link in page.links} == set(done.claims) <= page.ids
    for judged in done.claims.values():
        for part in (judged.title, judged.source, judged.outcome, judged.why, *judged.statistics):
            assert " ".join(part.split()) in text, part
    assert done.protocol_digest[:16] in text
    assert "SPLIT_RESIDUAL 0.1" in text


def test_no_request_goes_anywhere(small):
    for text in (model_html(small), comparison_html({"a": small})):
        page = Page(text)
        assert not page.outside
        assert all(link.startswith("#") for link in page.links)
        assert not re.search(r"@import|url\((?!#)|<script", text)


def test_pages_are_made_twice_alike(small):
    assert model_html(small) == model_html(small)
    both = {"a": small, "b": small}
    assert comparison_html(both) == comparison_html(both)


def test_markdown_keeps_its_tables_whole(done):
    for text in (model_markdown(done), comparison_markdown({"a": done, "b": done})):
        for block in text.split("\n\n"):
            rows = [line for line in block.splitlines() if line.startswith("|")]
            assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows}) <= 1, block
        assert r"\|K - L - S\| / \|K\|" in text
    assert "## The pursuit splits the keys: K = L + S: **not supported**" in model_markdown(done)


def test_names_are_escaped(small):
    hostile = small.model_copy(update={"model": small.model.model_copy(update={"name": "<b>&`|x*"})})
    for text in (model_html(hostile), comparison_html({"<b>&`|x*": hostile})):
        assert "<b>" not in text
        assert "&lt;b&gt;&amp;" in text
    assert r"&lt;b&gt;&'\|x\*" in model_markdown(hostile)


def test_models_of_one_name_are_numbered(done):
    assert list(pages.by_name([done, done, done])) == [f"rpc_symvit_digits{end}" for end in ("", " (2)", " (3)")]


def test_a_claim_that_one_model_lacks_was_not_measured(done):
    fewer = done.model_copy(update={"claims": {"gamma": done.claims["gamma"]}})
    text = " ".join(Page(comparison_html({"a": done, "b": fewer})).text)
    assert "not measured" in text
    assert "not testable" in text  # there is no Primal layer


def judged(units=((0, 0, 0.5),), profiles=None, better="more"):
    estimate = Estimate(0.5, 0.4, 0.6, 3, "student")
    made = tuple(Unit(layer=layer, head=head, mean=mean, deviation=0.0) for layer, head, mean in units)
    statistics = {
        name: Measured(what="x", better=side, estimate=estimate, null=None, units=made)
        for name, side in (("first", "neither"), ("main", better), ("main_random", "neither"))
    }
    return Judged(
        title="t", source="s", outcome="supported", why="w", statistics=statistics, profiles=profiles or {}, findings=()
    )


def test_the_criterion_is_the_first_with_a_direction():
    assert figures.criterion(judged()) == "main"
    assert figures.criterion(judged(better="neither")) == "first"
    assert figures.criterion(judged().model_copy(update={"statistics": {}})) is None
    assert figures.controls(judged(), "main") == ["main_random"]
    some = judged()
    other = some.model_copy(update={"statistics": some.statistics | {"main_orthonormal": some.statistics["main"]}})
    assert figures.controls(other, "main") == ["main_random"]  # the same of other axes is no control


def test_figures_of_nothing_are_nothing():
    nothing = judged().model_copy(update={"statistics": {}})
    assert figures.by_layer(nothing) == figures.profiles(nothing) == figures.across_models({}) == ""


def profile(*values, layers=(0, 1)):
    by_layer = tuple(LayerProfile(layer=layer, mean=values, deviation=(0.0,) * len(values)) for layer in layers)
    return Profile(what="x", mean=values, layers=by_layer)


def test_a_control_shares_the_panel_of_its_list():
    some = judged(profiles={"a": profile(3.0, 2.0, 1e-4), "a_random": profile(1.0, 1.0, 1.0), "b": profile(0.0, 1.0)})
    text = figures.profiles(some)
    assert text.startswith("<svg")
    assert text.count('id="axes_') == 2
    by_layer = figures.profiles_by_layer(some)
    assert list(by_layer) == ["a", "b"]
    assert [figure.count('id="axes_') for figure in by_layer.values()] == [2, 2]
    assert figures.profiles_by_layer(judged(profiles={"a": profile(1.0, layers=(3,))})) == {}


def test_the_command_writes_pages_and_compares(tmp_path, capsys):
    one, both = tmp_path / "one", tmp_path / "both"
    arguments = ["rpc_symvit_digits", "--claim", "decomposition", "--images", "2", "--block", "2", "--quiet"]
    assert main(["diagnose", *arguments, "-o", str(one)]) == 0
    assert {path.name for path in one.iterdir()} == {
        "diagnosis.json",
        "README.md",
        "index.html",
        "layers.csv",
        "profiles.csv",
    }
    assert (one / "index.html").read_text().startswith(model_html(load_diagnosis(one)))
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
    for name in ("README.md", "index.html"):
        (foreign / name).write_text("mine")
        capsys.readouterr()
        assert main(["diagnose", "vit_digits", "--images", "2", "-o", str(foreign), "-q"]) == 2
        error = capsys.readouterr().err
        assert "replace" in error
        assert error.count("\n") == 1
        assert (foreign / name).read_text() == "mine"
        assert not (foreign / "diagnosis.json").exists()
        (foreign / name).unlink()


def test_a_comparison_says_what_is_not_alike(small):
    def changed(**update):
        return small.model_copy(update={"protocol": small.protocol.model_copy(update=update)})

    limits = small.protocol.thresholds | {"ALIGNED": 0.1}
    assert "Same limits" in comparison_markdown({"a": small, "b": small})
    for other, what in ((changed(thresholds=limits), "limits (ALIGNED)"), (changed(images=3), "numbers of samples")):
        page = comparison_html({"a": small, "b": other})
        assert f"NOT ALIKE: different {what}." in " ".join(Page(page).text)
    data = small.model_copy(update={"data": small.data.model_copy(update={"digest": "0" * 64})})
    assert "NOT ALIKE: different data" in comparison_markdown({"a": small, "b": data})


@pytest.mark.parametrize("name", [r"m $\foo$ x", "模型 \U0001f600", "a_b^c"])
def test_any_name_can_be_drawn(small, name):
    assert figures.across_models({name: small}).startswith("<svg")


def test_nothing_to_compare(tmp_path):
    with pytest.raises(BadInputError, match="no diagnoses"):
        pages.write_comparison([], tmp_path)


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


RECORDS = Path(__file__).parents[2] / "leaderboards/digits/records"


def bundled(model, protocol, name=None):
    (path,) = RECORDS.glob(f"{model}__*__{protocol}__*.record.json")
    found = load_record(path)
    model = found.spec.model.model_copy(update={"name": name or model})
    return found.model_copy(update={"spec": found.spec.model_copy(update={"model": model})})


def test_models_are_paired_with_their_twins_alone():
    pgd = "pgd20-linf-4_255"
    given = [
        bundled("rpc_symvit_digits", pgd), bundled("symvit_digits", pgd), bundled("symvit_digits", "clean"),
        bundled("rpc_symvit_digits", pgd, "identity_symvit_digits"), bundled("rpc_symvit_all_digits", pgd),
        bundled("rpc_fan_digits_adv", pgd), bundled("fan_digits_adv", pgd), bundled("symfan_digits_adv", pgd),
        bundled("symfan_digits", pgd),
    ]  # fmt: skip
    found = ablation.contrasts(given)
    assert ablation.contrasts([*given, *given]) == found  # nothing counts twice, in the table or in Holm's adjustment
    assert {(one.model, one.twin) for one in found} == {
        ("rpc_symvit_digits", "identity_symvit_digits"), ("rpc_symvit_digits", "symvit_digits"),
        ("rpc_symvit_all_digits", "symvit_digits"), ("rpc_fan_digits_adv", "symfan_digits_adv"),
    }  # fmt: skip
    by_twin = {(one.model, one.twin): one for one in found}
    itself = by_twin["rpc_symvit_digits", "identity_symvit_digits"]
    assert (itself.paired.first, itself.p_holm, itself.row()[5]) == (itself.paired.second, 1, "+0.0")
    other = by_twin["rpc_symvit_digits", "symvit_digits"]
    values = [record.metrics["robust_accuracy"].value for record in given[:2]]
    assert [other.paired.first, other.paired.second] == pytest.approx(values)
    assert other.p_holm >= other.paired.p_value
    assert other.row()[2] == pgd
    assert ablation.without_identity(given) == ["rpc_symvit_all_digits", "rpc_fan_digits_adv"]


def test_segmenters_are_paired_by_what_is_measured_of_scenes():
    folder = RECORDS.parents[1] / "shapes/records"
    found = ablation.contrasts(
        [load_record(path) for path in folder.glob("*symvit_shapes__*__segmentation__*.record.json")]
    )
    assert [(one.model, one.twin) for one in found] == [("rpc_symvit_shapes", "symvit_shapes")]
    assert 0.7 < found[0].paired.first < 0.9  # mIoU 81.5 %


def test_the_bundled_records_make_an_ablation(tmp_path, small):
    small.save(tmp_path)
    (folder := tmp_path / "records").mkdir()
    for model in ("rpc_symvit_digits", "symvit_digits"):
        for path in RECORDS.glob(f"{model}__*__pgd20-linf-4_255__*"):
            shutil.copy(path, folder)
    shutil.copytree(RECORDS / "audits", folder / "audits")
    arguments = [
        "diagnose",
        "--compare",
        str(tmp_path),
        "--records",
        str(folder),
        "-o",
        str(tmp_path / "out"),
        "--quiet",
    ]
    assert main(arguments) == 0
    for name in ("README.md", "index.html"):
        text = (tmp_path / "out" / name).read_text()
        assert "What the pursuit adds" in text
        assert "No record of an identity twin" in text
