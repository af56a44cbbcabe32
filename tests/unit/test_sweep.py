"""A sweep is ordinary evaluations of one network under other options, and a table of them."""

import csv
import itertools

import pytest

from robustbench_kpca import evaluate, load_data, load_model
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.cli.main import main
from robustbench_kpca.records.record import find_records, load_record
from robustbench_kpca.report.sweep import combinations

pytestmark = pytest.mark.usefixtures("few_resamples")
SWEEP = ["sweep", "-m", "rpc_symvit_digits", "--limit", "8", "--audit", "none", "-q"]


def test_combinations_are_the_product_in_order():
    found = combinations(["lam=0.5,1,2", "model.threshold=lam*mu,lam/mu", "layers=[0],[0, 1]"])
    axes = [0.5, 1, 2], ["lam*mu", "lam/mu"], [[0], [0, 1]]
    assert [tuple(one.values()) for one in found] == list(itertools.product(*axes))
    assert {tuple(one) for one in found} == {("lam", "threshold", "layers")}
    assert combinations(["lam=4"]) == [{"lam": 4}]


@pytest.mark.parametrize(
    "settings", [["lam"], ["=1"], ["lam="], ["threshold=a,,b"], ["lam=1,2,1"], ["lam=1", "model.lam=2"]]
)
def test_settings_that_cannot_be_are_one_line(settings):
    with pytest.raises(BadInputError, match=settings[-1].split("=")[0] or "'=1'"):
        combinations(settings)


def test_a_sweep_is_ordinary_records_and_a_table_and_goes_on_where_it_stopped(tmp_path, capsys):
    asked = ["--set", "lam=0.5,4", "--set", "threshold=lam*mu,lam/mu", "-p", "clean,fgsm-linf-8_255"]
    assert main([*SWEEP, *asked, "-o", str(tmp_path)]) == 0
    assert "lam/mu" in capsys.readouterr().out
    with (tmp_path / "sweep.csv").open() as file:
        rows = list(csv.DictReader(file))
    data = load_data("digits", limit=8)
    for lam, threshold in itertools.product((0.5, 4), ("lam*mu", "lam/mu")):
        model = load_model("rpc_symvit_digits", lam=lam, threshold=threshold)
        for protocol in ("clean", "fgsm-linf-8_255"):
            alone = evaluate(model, data, protocol=protocol, audit=False)
            own = [row for row in rows if (row["lam"], row["threshold"]) == (str(lam), threshold)]
            own = [row for row in own if row["protocol"] == protocol]
            assert {row["metric"]: float(row["value"]) for row in own} == pytest.approx(
                {name: found.value for name, found in alone.metrics.items()}
            )
            (name,) = {row["record"] for row in own}
            record = load_record(tmp_path / f"{name}.record.json")
            assert record.outcomes.to_csv() == alone.outcomes.to_csv()
            assert (record.spec.model.config["lam"], record.spec.model.config["threshold"]) == (lam, threshold)
    page = (tmp_path / "sweep.md").read_text()
    assert page.count("\n| `") == 4
    assert "rbk sweep -m rpc_symvit_digits --set lam=0.5,4 --set 'threshold=lam*mu,lam/mu'" in page
    before = {path: path.read_bytes() for path in find_records(tmp_path)}
    assert len(before) == 8
    find_records(tmp_path)[0].unlink()
    assert main([*SWEEP, *asked, "-o", str(tmp_path)]) == 0
    after = {path: path.read_bytes() for path in find_records(tmp_path)}
    assert sum(before[path] != after[path] for path in before) <= 1, "only the missing one was made"


@pytest.mark.untyped  # wrong values, on purpose
@pytest.mark.parametrize(
    ("setting", "word"),
    [
        ("lambda=1,2", "no option 'lambda'"),
        ("lam=1,-1", "lam = -1"),
        ("lam=1,abc", "'lam': 'abc'"),
        ("threshold=lam,mu", "threshold = 'lam'"),
        ("mu_width=heads,embed", "mu_width = 'heads'"),
    ],
)
def test_what_no_model_can_be_built_with_is_one_line_before_anything_is_measured(setting, word, tmp_path, capsys):
    assert main([*SWEEP, "--set", setting, "-p", "clean", "-o", str(tmp_path / "o")]) == 2
    said = capsys.readouterr().err.strip()
    assert word in said
    assert "\n" not in said
    assert not list(tmp_path.glob("o/*"))
