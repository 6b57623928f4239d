"""What the tests of the gallery share: one small image, a row of scores, and what a page holds."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

SMALL = np.arange(64, dtype=np.uint8).reshape(8, 8, 1)


def make_row(score: float, **others: Any) -> dict[str, Any]:
    row = {"file": "", "score": score, "p_value": 0.25, "verdict": "normal", "class": "4"}
    return row | {"error": "", "pp": 0.5, "p_value_class": ""} | others


def content(path: Path) -> dict[str, Any]:
    found = re.search(
        r'<script id="content" type="application/json">(.*?)</script>', path.read_text("utf-8")
    )
    assert found
    return json.loads(found[1])
