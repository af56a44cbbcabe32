import pytest

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.strict import parse_fraction
from robustbench_kpca.protocols.threat import Threat, parse_step


@pytest.mark.parametrize(
    ("text", "value"),
    [("8/255", 8 / 255), ("0.03", 0.03), (0.03, 0.03), (1, 1.0), ("1e-2", 0.01), (" 3 / 4 ", 0.75), (".5", 0.5)],
)
def test_fractions(text, value):
    assert parse_fraction(text) == value


@pytest.mark.parametrize("text", ["", "8/0", "-1", "1/2/3", "nan", "1e999", "٨/٢٥٥"])
def test_what_is_no_fraction(text):
    with pytest.raises(BadInputError, match=r"number|finite"):
        parse_fraction(text)


@pytest.mark.parametrize(
    ("text", "eps", "value"),
    [("0.25 eps", 0.4, 0.1), ("0.25*eps", 0.4, 0.1), ("1/4 eps", 0.4, 0.1), ("2/255", 0.4, 2 / 255), (0.1, 0.4, 0.1)],
)
def test_steps(text, eps, value):
    assert parse_step(text, eps) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize("eps", [0, -0.1, 1e-300, float("nan"), float("inf")])
def test_eps_must_be_positive_and_finite(eps):
    with pytest.raises(BadInputError, match="at least 1e-08"):
        Threat("linf", eps)


def test_threats_are_spelled_and_eight_is_refused():
    assert str(Threat("linf", 8 / 255)) == "linf 8/255"
    assert str(Threat("l2", 1000)) == "l2 1000"
    assert str(Threat("l2", 0.5)) == "l2 0.5"
    assert str(Threat("l1", 12)) == "l1 12"
    with pytest.raises(BadInputError, match="8/255"):
        Threat("linf", 8)
