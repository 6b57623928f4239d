"""The tables of README, docs/ and docs/paper/ are those that the files under results/ give."""

import os
import re
from pathlib import Path

import pytest

from anocaps.data import available
from anocaps.study.report.costs import Costs
from anocaps.study.report.numbers import Numbers
from anocaps.study.report.page import table_files
from anocaps.study.report.runlog import RunLog
from anocaps.study.reports import read_results

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]
TABLE = re.compile(r"<!-- table: (\S+) -->\n(.*?)<!-- /table -->", re.DOTALL)
FOUND = [(path.name, *found) for path in PAGES for found in TABLE.findall(path.read_text("utf-8"))]
OF_IMAGES = {"claims", "moves", "nines"}  # they compare reconstructions or classes with images


@pytest.fixture(scope="module")
def tables():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        import tables

        yield tables.TABLES


@pytest.mark.parametrize(("page", "name", "content"), FOUND, ids=lambda each: str(each)[:20])
def test_a_table_is_what_the_results_give(page, name, content, tables):
    if name in OF_IMAGES:
        for dataset in ("mnist", "fashion-mnist", "small-norb"):
            folder = os.environ.get("ANOCAPS_DATA")
            if not folder or not available(dataset, Path(folder)):
                pytest.skip(f"{dataset} is not in ANOCAPS_DATA")
    assert content.strip() == tables[name]().strip(), f"{page}: run make tables"


def test_the_files_of_the_report_are_what_the_results_give():
    field = ROOT / "results" / "field"
    numbers = Numbers(read_results(field))
    costs = Costs(numbers, RunLog.read(field / "log.jsonl"))
    for name, text in table_files(numbers, costs).items():
        assert (ROOT / "docs" / "paper" / name).read_text("utf-8") == text, f"{name}: make tables"


def test_the_report_was_made_with_the_images_that_claims_need():
    page = (ROOT / "docs" / "paper" / "index.html").read_text("utf-8")
    assert "missing: the images" not in page, "make tables, with all datasets in ANOCAPS_DATA"
