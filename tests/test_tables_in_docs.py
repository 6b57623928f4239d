"""The tables of README and docs/ are those that the files under results/ give."""

import os
import re
from pathlib import Path

import pytest

from anocaps.data import available

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
