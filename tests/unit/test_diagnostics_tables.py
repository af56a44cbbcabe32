"""What is printed comes from the diagnosis alone, and findings turn where their interval does."""

import subprocess
import sys

import pytest
from diagnosed import diagnosed

from robustbench_kpca import load_data, load_model
from robustbench_kpca.records.estimate import Estimate
from robustbench_kpca.study.diagnostics import tables
from robustbench_kpca.study.diagnostics.diagnosis import finding
from robustbench_kpca.study.diagnostics.sources import ImageSource


@pytest.mark.parametrize(
    ("low", "high", "least", "most", "outcome"),
    [
        (0.1, 0.2, None, 0.3, "confirmed"), (0.2, 0.4, None, 0.3, "undecided"), (0.4, 0.5, None, 0.3, "contradicted"),
        (2.6, 3.4, 2.5, 3.5, "confirmed"), (1.9, 2.1, 2.5, 3.5, "contradicted"), (2.4, 2.6, 2.5, None, "undecided"),
    ],
)  # fmt: skip
def test_findings(low, high, least, most, outcome):
    measured = Estimate((low + high) / 2, low, high, 10, "student")
    assert finding("", "", "", measured, least=least, most=most).outcome == outcome


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    source = ImageSource(load_data("digits", limit=10).in_order())
    claims = ["projection_loss", "value_vectors"]
    done = diagnosed(load_model("vit_digits"), source, name="vit", layers=[0, 2], claims=claims)
    return done, done.save(tmp_path_factory.mktemp("kept"))


def test_rows(kept):
    done, _ = kept
    assert [row[1] for row in tables.verdict_rows(done)] == ["not supported"] * 2
    rows = {row[1]: row for row in tables.statistic_rows(done)}
    cka = done.claims["value_vectors"].statistics["linear_cka"]
    assert rows["linear_cka"][2] == f"{cka.estimate.value:.3g}"
    assert rows["linear_cka"][4] == f"{cka.null.chance:.3g}"
    assert rows["linear_cka"][-1].endswith("of 6")
    assert rows["log10_h"][4:] == ("", "", "", "")
    layers = tables.layer_rows(done.claims["value_vectors"], ["linear_cka"])
    assert [row[0] for row in layers] == ["0", "2"]
    means = [unit.mean for unit in cka.units if unit.layer == 2]
    assert layers[1][2] == f"{sum(means) / 3:.3g}"
    assert len(tables.finding_rows(done)) == 6
    assert {row[1] for row in tables.chance_rows(done)} >= {"linear_cka", "matching_cosine"}


def test_tables_need_no_torch(kept):
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from robustbench_kpca.study.diagnostics import diagnosis, epochs, tables\n"
        f"print(tables.verdict_rows(diagnosis.load_diagnosis(Path({str(kept[1])!r})))[0][1], 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "not supported False"
