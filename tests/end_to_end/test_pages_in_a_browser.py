"""Every kind of page in Chromium: what one clicks works, nothing is asked of a network, and a phone scrolls one way.

Skipped, loudly, where Playwright or a Chromium is missing; RBK_CHROMIUM names one that is elsewhere.
"""

import json
import os
import shutil
from pathlib import Path

import pytest

from robustbench_kpca.cli.main import main
from robustbench_kpca.study.diagnostics.diagnosis import load_diagnosis
from robustbench_kpca.study.diagnostics.pages import write_comparison, write_pages

BOARDS = Path(__file__).parents[2] / "leaderboards"
PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder of boards with facets, of corruptions and with training seeds, diagnoses, packs and the index."""
    site = tmp_path_factory.mktemp("site")
    for name in ("digits", "digits-attacks"):
        shutil.copytree(BOARDS / name, site / name)
        assert main(["board", "render", str(site / name), "--quiet"]) == 0
    found = [load_diagnosis(path.parent) for path in sorted(BOARDS.glob("saritas2025/claim-1/vit*/diagnosis.json"))]
    write_comparison(found, site / "claims")
    write_pages(found[0], site / "claims" / "one")
    for name in ("saritas2025", "cifar10", "wikitext", "teo2024"):
        shutil.copytree(BOARDS / name, site / name, ignore=shutil.ignore_patterns("trainings"))
    assert main(["board", "index", str(site)]) == 0
    return site


@pytest.fixture(scope="module")
def chromium():
    sync = pytest.importorskip("playwright.sync_api", reason="NO BROWSER TESTS: playwright is not installed")
    path = os.environ.get("RBK_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("NO BROWSER TESTS: there is no chromium (apt-get install chromium, or set RBK_CHROMIUM)")
    with sync.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def visit(chromium, site):
    """Open a page of the site; whatever it logs or asks of a network fails the test."""
    contexts, troubles = [], []

    def open_page(path, **how):
        context = chromium.new_context(**how)
        contexts.append(context)
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        page = context.new_page()
        page.on("console", lambda message: troubles.append(message.text))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("request", lambda one: None if one.url.startswith("file:") else troubles.append(one.url))
        page.goto((site / path).as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not troubles


def models(page):
    shown = page.locator("#board tbody tr:not(.none):visible th")
    return [row.get_attribute("data-id") for row in shown.all()]


def column(page, title):
    heads = page.locator("#board thead th .sort").all_inner_texts()
    return page.locator(f"#board tbody tr:not(.none) > :nth-child({heads.index(title) + 1}) a").all_inner_texts()


PAGES = ("index.html", "digits/index.html", "digits-attacks/index.html", "claims/index.html", "claims/one/index.html",
         "saritas2025/index.html", "saritas2025/training/index.html", "cifar10/index.html",
         "cifar10/table-1/index.html", "cifar10/table-8/index.html", "wikitext/index.html",
         "teo2024/statements/index.html")  # fmt: skip


@pytest.mark.parametrize("path", PAGES)
@pytest.mark.parametrize("how", [{}, PHONE, {"color_scheme": "dark"}], ids=["desktop", "phone", "dark"])
def test_every_page_opens_and_none_scrolls_sideways(path, how, visit):
    page = visit(path, **how)
    wide, seen = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert wide <= seen
    assert page.locator("h1").count() == 1
    assert page.locator("svg:not([role=img])").count() == 0
    back = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (back == "rgb(255, 255, 255)") == (how.get("color_scheme") != "dark")


def test_a_heading_sorts_both_ways_and_says_so(visit):
    page = visit("digits/index.html")
    head = page.locator("#board thead th", has_text="Clean")
    for order, backwards in (("descending", True), ("ascending", False)):
        head.locator(".sort").click()
        assert head.get_attribute("aria-sort") == order
        values = [float(text) for text in column(page, "Clean")]
        assert values == sorted(values, reverse=backwards)
    assert page.locator("#board th[aria-sort]").count() == 1
    page.locator("#board thead .pin .sort").press("Enter")
    names = [name.removesuffix(" paper") for name in page.locator("#board tbody tr:not(.none) th").all_inner_texts()]
    assert names == sorted(names, key=str.casefold)


def test_the_filter_and_the_facets_choose_rows_and_an_empty_table_says_so(visit):
    page = visit("digits/index.html")
    everything = models(page)
    page.fill("#filter", "RPC_")
    assert models(page) == [name for name in everything if "rpc_" in name]
    page.fill("#filter", "nobody")
    assert models(page) == []
    assert page.locator(".none").inner_text().startswith("No model matches.")
    page.click("#clear")
    assert models(page) == everything
    page.check('[data-facet="Adversarial"][value="yes"]')
    assert models(page) == [name for name in everything if name.endswith("_adv")]
    page.check('[data-facet="Attention"][value="RPC"]')
    assert models(page) == [name for name in everything if name.endswith("_adv") and name.startswith("rpc_")]
    assert page.inner_text("#count") == f"3 of {len(everything)} rows"


def test_a_cell_leads_to_its_records_and_copies_the_command_that_makes_it(visit, site):
    page = visit("digits-attacks/index.html")
    page.locator("#board tbody tr").first.locator("a[data-runs*=' ']").first.click()
    panel = page.locator("#cell")
    links = panel.locator("a", has_text="record")
    assert links.count() == 7, "the worst case of seven attacks"
    for number in range(7):
        assert json.loads((site / "digits-attacks" / links.nth(number).get_attribute("href")).read_bytes())["spec"]
    panel.locator(".copy").first.click()
    panel.get_by_text("copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()").startswith("rbk eval --model vit_digits_adv --data digits")
    page.keyboard.press("Escape")
    assert not panel.is_visible()


def test_every_column_explains_itself(visit):
    page = visit("digits/index.html")
    page.locator("#board thead .ask").nth(1).click()
    shown = page.locator(".help:popover-open")
    assert "PGD-20 8/255" in shown.inner_text()
    assert shown.locator("a").first.get_attribute("href") == "https://arxiv.org/abs/1706.06083"


def test_head_and_first_column_stick_while_the_table_scrolls(visit):
    page = visit("digits/index.html", viewport={"width": 500, "height": 320})
    box = page.evaluate("""() => {
      const frame = document.querySelector("#board").parentElement; frame.scrollTo(200, 200);
      const at = one => { const r = document.querySelector(one).getBoundingClientRect(); return [r.left, r.top]; };
      const f = frame.getBoundingClientRect();
      const head = at("#board thead th"), name = at("#board tbody th.pin");
      return {frame: [f.left, f.top], head, name, moved: frame.scrollTop};
    }""")
    assert box["moved"] > 50
    assert box["head"][1] == pytest.approx(box["frame"][1], abs=2)
    assert box["name"][0] == pytest.approx(box["frame"][0], abs=2)


@pytest.mark.parametrize("width", [390, 1400])
def test_place_and_the_ranked_column_are_on_the_first_screen(width, visit):
    page = visit("digits/index.html", viewport={"width": width, "height": 844})
    heads = [page.locator("#board thead th", has_text=name).bounding_box() for name in ("Place", "PGD-20 8/255")]
    assert heads[0]["x"] >= 0
    assert heads[1]["x"] + heads[1]["width"] <= width


def test_without_script_and_on_paper_the_whole_table_is_there(visit):
    page = visit("digits/index.html", java_script_enabled=False)
    assert len(page.locator("#board tbody tr:not(.none)").all()) == 14
    assert not page.locator("#filter").is_visible()
    assert not page.locator(".none").is_visible()
    page = visit("digits/index.html")
    page.emulate_media(media="print")
    assert not page.locator(".bar").is_visible()
    assert page.locator("#board tbody small").first.is_visible()
    frame = page.evaluate("(e => [e.scrollHeight, e.clientHeight])(document.querySelector('#board').parentElement)")
    assert frame[0] <= frame[1] + 1


def test_the_index_leads_to_every_page(visit, site):
    page = visit("index.html")
    links = [link.get_attribute("href") for link in page.locator("main a").all()]
    assert {"digits/index.html", "digits-attacks/index.html", "saritas2025/index.html"} <= set(links)
    assert all((site / link).is_file() for link in links)
