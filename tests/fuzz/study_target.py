"""What `study status` reads beside the results: the plan, and the error of a failed cell."""

import io
import json
import shutil
from pathlib import Path
from random import Random

from mutation import as_text, damaged_json
from rich.console import Console
from targets import Target

from anocaps.base.errors import DataError
from anocaps.cli.terminal import _standings
from anocaps.study.plan import failures, standings


class Status(Target):
    """The first byte says which of the two files follows."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        entry = {"dataset": "mnist", "method": "vae", "fingerprint": "ab"}
        plan = {f"mnist/vae/{held_out}-seed0": entry for held_out in ("2", "7")}
        self.plan = json.dumps(plan).encode()
        self.seeds = (b"p" + self.plan, b"f" + b"Traceback:\n  File 1\nValueError: why\n")

    def damage(self, random: Random, content: bytes) -> bytes:
        if content[:1] == b"p" and random.random() < 0.7:
            text = as_text(random, damaged_json(random, json.loads(content[1:])))
            return b"p" + text.encode("utf-8", "replace")
        return super().damage(random, content)

    def accept(self, content: bytes) -> None:
        folder = self.folder / "study"
        shutil.rmtree(folder, ignore_errors=True)
        cell = folder / "mnist" / "vae" / "2-seed0.failed"
        cell.parent.mkdir(parents=True)
        is_plan = content[:1] == b"p"
        (folder / "plan.json").write_bytes(content[1:] if is_plan else self.plan)
        cell.write_bytes(b"" if is_plan else content[1:])
        try:
            rows = standings(folder)
        except OSError as error:  # a name that is too long: one line as well
            raise DataError(str(error)) from error
        out = io.StringIO()
        Console(file=out, width=100).print(_standings(rows, None))
        for row in rows:
            for _, error in failures(folder, row):
                print(error, file=out)
        text = out.getvalue()
        assert text.replace("\n", "").isprintable(), "a control character was printed"
        text.encode()
