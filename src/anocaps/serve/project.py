"""One project folder and all that works on it.

PROJECT/project.sqlite   jobs, rows, marks
PROJECT/photos/CLASS/    normal photos that were dropped on the page
PROJECT/new/NAME/        photos to review
PROJECT/models/          model files, .safetensors and .onnx
PROJECT/training/        checkpoints of unfinished training
PROJECT/incoming/        images of requests that are being answered
"""

import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from anocaps.base.files import make_folder, one_run
from anocaps.serve.database import Database
from anocaps.serve.jobs import Jobs
from anocaps.serve.metrics import Metrics
from anocaps.serve.receiving import Room
from anocaps.serve.review import Scoring
from anocaps.serve.scoring import Models
from anocaps.serve.security import MEGABYTE, Roots
from anocaps.serve.training import Training


@dataclass(frozen=True)
class Limits:
    """What one client, and all of them together, may use."""

    body: int = 256 * MEGABYTE  # bytes of one request
    image: int = 64 * MEGABYTE  # bytes of one image in it
    receiving: int = 128  # requests whose bodies are being received
    part: int = 8 * MEGABYTE  # bytes of one part of an uploaded file


class Project:
    def __init__(
        self,
        folder: Path,
        roots: Sequence[Path] = (),
        models: Sequence[Path] = (),
        limits: Limits | None = None,
    ) -> None:
        self.folder = folder.resolve()
        make_folder(self.folder)
        self.limits = limits or Limits()
        self.photos, self.new, self.incoming, training, own_models = (
            self.folder / name for name in ("photos", "new", "incoming", "training", "models")
        )
        with ExitStack() as opened:
            opened.enter_context(one_run(self.folder / "project"))  # one server a project
            shutil.rmtree(self.incoming, ignore_errors=True)
            for each in (self.photos, self.new, self.incoming, own_models):
                make_folder(each)
            self.roots = Roots([self.folder, *roots])
            self.metrics = Metrics()
            self.room = Room()
            self.models = Models(own_models, models)
            for name in self.models.given:
                self.models.batcher(name)  # a bad file is an error now, not at the first request
            self.database = Database(self.folder / "project.sqlite")
            opened.callback(self.database.close)
            scoring = Scoring(self.database, self.models, self.metrics.image)
            trainer = Training(self.database, training, own_models)
            trainer.sweep()
            self.jobs = Jobs(
                self.database,
                {
                    "check": trainer.check,
                    "forecast": trainer.forecast,
                    "score": scoring,
                    "watch": scoring,
                    "train": trainer,
                },
            )
            self._opened = opened.pop_all()
        self._numbers = count()

    def incoming_stem(self) -> Path:
        """A new name for the files of a request."""
        return self.incoming / str(next(self._numbers))

    def close(self) -> None:
        self.jobs.close()
        self.models.close()
        self._opened.close()
