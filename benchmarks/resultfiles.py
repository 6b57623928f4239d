"""Where the measured figures lie, how they are read, and the form of a table made from them."""

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"
# What files of earlier versions do not say of themselves, and what is known of them.
_UNSAID = {
    "speed-gpu.json": {
        "batch": 100,
        "training precision": "bf16",
        "parameters": 8_059_920,
        "multiply-adds an image": {"primary": 191_102_976},
    },
    "growth-cpu.json": {"batch": 100},
    "growth-gpu.json": {"batch": 100},
}


def there(name: str) -> bool:
    return (RESULTS / name).exists()


def read(name: str) -> Any:
    found = json.loads((RESULTS / name).read_text("utf-8"))
    return _UNSAID[name] | found if name in _UNSAID else found


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
