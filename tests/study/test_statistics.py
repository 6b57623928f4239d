"""Statistics over classes, and metrics for rare anomalies, against direct computations."""

from statistics import fmean, stdev

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import average_precision_score
from study_results import make_result

from anocaps.judging.metrics import roc_curve
from anocaps.study.report.costs import Costs
from anocaps.study.report.field import field_csv, field_latex, field_rows, note_of, signed
from anocaps.study.report.numbers import Numbers
from anocaps.study.report.runlog import RunLog
from anocaps.study.report.statistics import aupr_at, found_at, summarise
from anocaps.study.tuning import TUNED

RESULTS = [
    make_result((digit,), seed, method)
    for method in ("capsnet", "vae")
    for digit in "0123456789"
    for seed in (0, 1)
]
RUN = {"study": "field", "methods": ["vae"], "datasets": ["mnist"], "commit": "0123456789ab"}
LOG = RunLog([RUN | {"finished": 20, "seconds": 70.0}])


@pytest.fixture(scope="module")
def numbers():
    return Numbers(RESULTS)


@pytest.fixture(scope="module")
def costs(numbers):
    return Costs(numbers, LOG)


def by_class(method, score):
    return [
        fmean(
            r.metrics[score].auroc for r in RESULTS if r.method == method and r.held_out == (digit,)
        )
        for digit in "0123456789"
    ]


def test_errors_over_seeds_and_over_classes(numbers):
    pp, *_ = numbers.headlines("mnist")
    found = summarise(numbers, "mnist", pp)
    values = by_class("capsnet", "pp")
    assert found.mean == pytest.approx(fmean(values))
    assert found.se == pytest.approx(stdev(values) / 10**0.5)
    assert found.sd == pytest.approx(numbers.mean_auroc("mnist", pp).sd)
    assert found.whole and (found.classes, found.seeds) == (10, 2)


def test_differences_are_paired_by_class(numbers):
    series = {(s.method, s.score): s for s in numbers.every()}
    found = summarise(numbers, "mnist", series["vae", "re"], series["capsnet", "pp"])
    gaps = np.subtract(by_class("vae", "re"), by_class("capsnet", "pp"))
    want = stats.ttest_1samp(gaps, 0).confidence_interval(0.95)
    mean, low, high = found.difference
    assert mean == pytest.approx(gaps.mean())
    np.testing.assert_allclose((low, high), want, rtol=1e-3)


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5])
def test_aupr_for_a_share_of_anomalies_is_that_of_such_a_test(share):
    generator = np.random.default_rng(0)
    normal, anomalous = generator.normal(1, 1, 400), generator.normal(0, 1, 300)
    curve = roc_curve(normal, anomalous)
    weights = np.r_[np.full(400, (1 - share) / 400), np.full(300, share / 300)]
    labels = np.r_[np.zeros(400), np.ones(300)]
    want = average_precision_score(labels, -np.r_[normal, anomalous], sample_weight=weights)
    assert aupr_at(*curve, share) == pytest.approx(want)


def test_anomalies_found_at_5_percent_false_alarms():
    normal = np.arange(100.0)
    anomalous = np.r_[np.full(30, 4.5), np.full(70, 5.5)]  # 5 and 6 normal images lie below
    assert found_at(*roc_curve(normal, anomalous)) == pytest.approx(0.3)


def test_every_score_has_a_row_and_a_line(numbers, costs):
    rows = field_rows(numbers, costs)
    assert [row["label"] for row in rows] == [s.look.label for s in numbers.every()]
    first, second = ("".join(row["cells"][0]["lines"]) for row in rows[:2])
    assert "[" not in first and "[" in second  # a difference from the first row
    titles, *lines = field_csv(numbers, costs)
    assert {len(line) for line in lines} == {len(titles)} and len(lines) == len(rows)
    vae = dict(zip(titles, next(line for line in lines if line[1] == "VAE")))
    assert (vae["seconds per cell"], vae["seeds"], vae["MB"]) == ("3.5", "2", "")
    assert vae["seconds are"] != next(
        line[titles.index("seconds are")] for line in lines if line[1] == "CapsNet (PP)"
    )


def test_the_latex_table_has_a_row_per_score_and_says_what_its_errors_are(numbers):
    *rows, note, end = field_latex(numbers).splitlines()
    assert len(rows) == 2 + len(numbers.every()) and all(r"\\" in row for row in rows[1:])
    assert all(r" \pm " in row for row in rows[2:]) and end == r"\end{tabular}"
    columns = rows[0].split("{")[-1].rstrip("}")
    assert rf"\multicolumn{{{len(columns)}}}" in note and r"$\pm$" in note
    one = make_result(("2",), method="dbn")
    last = field_latex(Numbers([*RESULTS, one])).splitlines()[-3]
    assert "(1 classes)" in last  # a mean over fewer classes than those above


def test_a_method_s_name_is_text_in_latex():
    table = field_latex(Numbers([make_result(("2",), method="a&b_{50%}\\", scores=("re",))]))
    assert r"a\&b\_\{50\%\}\textbackslash{}" in table


def test_shortened_and_tuned_rows_say_so_and_others_do_not():
    made = [make_result(method="vae"), make_result(method="vae", variant=TUNED)]
    made.append(make_result(method="anogan", scores=("search",)))
    notes = {series.row: bool(note_of(series)) for series in Numbers(made).every()}
    assert notes == {"vae": False, "vae-tuned": True, "anogan": True}


def test_a_difference_of_nothing_has_no_sign():
    assert [signed(v) for v in (-4e-5, 4e-5, -0.0004, 0.0004, -0.0006, 0.0006)] == [
        "0.000", "0.000", "−0.0004", "+0.0004", "−0.001", "+0.001",
    ]  # fmt: skip
