"""plan: the plan of a mechanism, as text and JSON."""

import json

import pytest
from console_helpers import refused, run

from fedpca_sklearn import AnalyzeGauss
from fedpca_sklearn.privacy import PrivateNorm

__all__ = ["run"]
MECHANISM = "AnalyzeGauss(1.0, 1e-5, row_norm=4.0)"
SIZES = ("--rows", "3000", "--columns", "20")


def test_a_plan_is_that_of_the_mechanism(run):
    code, out, err = run("plan", MECHANISM, *SIZES, "-n", "3", "--spectrum", "9,4,1,.1", "--json")
    assert (code, err) == (0, "")
    plan = AnalyzeGauss(1.0, 1e-5, 4.0).plan(3000, 20, 3, spectrum=[9, 4, 1, 0.1])
    expected = [
        {
            "epsilon": one.epsilon,
            "error": one.error,
            "n_components_above_noise": one.n_components_above_noise,
        }
        for one in (plan.half, plan, plan.twice)
    ]
    assert json.loads(out)["plans"] == expected


def test_a_plan_in_lines(run):
    code, out, err = run("plan", MECHANISM, *SIZES)
    plan = AnalyzeGauss(1.0, 1e-5, 4.0).plan(3000, 20, 2)
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == "3000 rows, 20 columns, delta 1e-05"
    assert out.splitlines()[3].split()[:2] == ["1", f"{plan.error:.3f}"]
    assert [line.split()[0] for line in out.splitlines()[2:]] == ["0.5", "1", "2"]


@pytest.mark.filterwarnings("default::fedpca_sklearn.privacy.PrivacyBoundWarning")
def test_too_few_rows_for_a_search_are_named(run):
    private = "AnalyzeGauss(1.0, 1e-5, row_norm='private', center=PrivateCenter(share=0.2))"
    code, _, err = run("plan", private, "--rows", "200", "--columns", "10")
    assert code == 0
    assert err.count("warning: A private search may take any norm of so few rows") == 2
    code, _, err = run("plan", private, "--rows", "5000", "--columns", "10")
    assert (code, err) == (0, "")


def test_searches_are_written_as_a_person_does(run):
    private = "AnalyzeGauss(1.0, 1e-5, row_norm=PrivateNorm(bounds=(0.1, 100.0), share=0.1))"
    _, out, _ = run("plan", private, "--rows", "5000", "--columns", "10", "--json")
    plan = AnalyzeGauss(1.0, 1e-5, PrivateNorm((0.1, 100.0), 0.1)).plan(5000, 10, 2)
    assert json.loads(out)["plans"][1]["error"] == plan.error


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("FedPowerNoise(1.0, 1e-5, row_norm=1.0)", *SIZES), "one of FederatedPCA"),
        (("AnalyzeGauss(-1.0, 1e-5, row_norm=1.0)", *SIZES), "epsilon"),
        (("AnalyzeGauss(1.0, 1e-5, row_norm='data')", *SIZES), "a plan, got 'data'"),
        ((MECHANISM, "--rows", "9", "--columns", "2", "-n", "3"), "n_components=3"),
    ],
)
def test_what_has_no_plan(run, arguments, what):
    assert what in refused(run, "plan", *arguments)
