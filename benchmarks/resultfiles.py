"""Where the measured figures lie, how they are read, and the form of a table made from them."""

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"


def there(name: str) -> bool:
    return (RESULTS / name).exists()


def read(name: str) -> Any:
    return json.loads((RESULTS / name).read_text("utf-8"))


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
