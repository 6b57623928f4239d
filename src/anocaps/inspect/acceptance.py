"""The acceptance test of a model: compare its verdicts on known images with the truth."""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from anocaps.base.errors import DataError, InputError
from anocaps.base.text import shown
from anocaps.inspect.listing import Listing
from anocaps.inspect.scoring import default_alpha, score_batches
from anocaps.judging.calibration import needed_for, smallest_alpha
from anocaps.judging.flagged import far_more
from anocaps.judging.judgement import Judge
from anocaps.judging.metrics import Floats, auroc
from anocaps.judging.spread import auroc_range, share_range

ALPHAS = (0.01, 0.05, 0.1)


@dataclass(frozen=True)
class Share:
    """Flagged images, with the 95 % interval of their share."""

    flagged: int
    images: int
    share: float
    low: float
    high: float


@dataclass(frozen=True)
class AtAlpha:
    """The verdicts at one false-alarm rate."""

    alpha: float
    needs: int  # calibration images; the shares are None if the model has fewer
    found: Share | None = None  # of the anomalous images
    false_alarms: Share | None = None  # of the normal images
    too_many: bool = False  # far more false alarms than alpha explains


@dataclass(frozen=True)
class Folder:
    """A sub-folder of a folder that the user named, or the images directly in that folder."""

    folder: str
    anomalous: bool  # as the user named it
    images: int
    failed: int  # files that could not be scored
    auroc: float | None  # against all images of the other kind
    flagged: Share | None  # at the alpha of `Acceptance`


@dataclass(frozen=True)
class Acceptance:
    score_function: str
    pretrained: str | None  # dataset of the model's pretrained features
    calibration_size: int
    normal: int  # images
    anomalous: int
    failed: list[str]  # why files could not be scored
    auroc: float | None  # None without anomalous images
    auroc_low: float | None
    auroc_high: float | None
    at: list[AtAlpha]
    alpha: float  # of `folders`: the usual one, or the smallest that the calibration set allows
    folders: list[Folder]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Measured:
    """The scores and p-values of the images of one kind, in the order of their files."""

    files: list[Path]
    places: list[str]  # the sub-folder of each file
    scores: Floats  # −inf where the score is not finite
    p_values: Floats  # NaN without a calibration set
    failed: dict[str, list[str]]  # sub-folder → why files could not be scored

    def of(self, place: str) -> "Measured":
        chosen = np.array([each == place for each in self.places], dtype=bool)
        files = [file for file, kept in zip(self.files, chosen) if kept]
        failed = {place: self.failed.get(place, [])}
        scores, p_values = self.scores[chosen], self.p_values[chosen]
        return Measured(files, [place] * len(files), scores, p_values, failed)

    def flagged(self, alpha: float) -> Share | None:
        if not len(self.scores) or np.isnan(self.p_values).any():
            return None
        count = int((self.p_values <= alpha).sum())
        share = count / len(self.scores)
        return Share(count, len(self.scores), share, *share_range(count, len(self.scores)))


def check_disjoint(normal: Iterable[Path], anomalous: Iterable[Path]) -> None:
    """Refuse an image that was named both as normal and as anomalous."""
    known = {os.path.realpath(file) for file in normal}
    for file in anomalous:
        if os.path.realpath(file) in known:
            raise InputError(
                f"{shown(file)} is among the normal and the anomalous images; name folders that "
                "share no image"
            )


def measure_files(
    judge: Judge, listing: Listing, progress: Callable[[int], None] | None = None
) -> Measured:
    """Score all files. `progress` receives the number of files done."""
    measured = Measured([], [], np.empty(0), np.empty(0), {})
    scores: list[float] = []
    p_values: list[float] = []
    done = 0
    for batch in score_batches(judge, listing, default_alpha(judge)):
        for scored in batch:
            place = _place(scored.file, listing.paths)
            row = scored.row
            if row["error"] is not None:
                measured.failed.setdefault(place, []).append(row["error"])
                continue
            measured.files.append(scored.file)
            measured.places.append(place)
            scores.append(-inf if row["score"] is None else row["score"])
            p_values.append(np.nan if row["p_value"] is None else row["p_value"])
        done += len(batch)
        if progress is not None:
            progress(done)
    measured.scores, measured.p_values = np.array(scores), np.array(p_values)
    return measured


def accept(judge: Judge, normal: Measured, anomalous: Measured | None) -> Acceptance:
    """All figures of the test, from the scores of both kinds of images."""
    kinds = [normal, *([] if anomalous is None else [anomalous])]
    reasons = [why for kind in kinds for each in kind.failed.values() for why in each]
    if any(not kind.files for kind in kinds):
        which = "normal" if not normal.files else "anomalous"
        raise DataError(f"none of the {which} images could be scored; the first: {reasons[0]}")
    area, low, high = None, None, None
    if anomalous is not None:
        area = auroc(normal.scores, anomalous.scores)
        low, high = auroc_range(area, len(anomalous.files), len(normal.files))
    alpha = default_alpha(judge)
    return Acceptance(
        score_function=judge.score_function,
        pretrained=(judge.card or {}).get("pretrained"),
        calibration_size=judge.calibration_size,
        normal=len(normal.files),
        anomalous=0 if anomalous is None else len(anomalous.files),
        failed=reasons,
        auroc=area,
        auroc_low=low,
        auroc_high=high,
        at=[_at(each, judge.calibration_size, normal, anomalous) for each in ALPHAS],
        alpha=alpha,
        folders=[
            *([] if anomalous is None else _folders(anomalous, normal, True, alpha)),
            *_folders(normal, anomalous, False, alpha),
        ],
    )


def _at(alpha: float, size: int, normal: Measured, anomalous: Measured | None) -> AtAlpha:
    if not size or alpha < smallest_alpha(size):
        return AtAlpha(alpha, needed_for(alpha))
    alarms = normal.flagged(alpha)
    return AtAlpha(
        alpha,
        needed_for(alpha),
        None if anomalous is None else anomalous.flagged(alpha),
        alarms,
        alarms is not None and far_more(alarms.flagged, alarms.images, alpha, size),
    )


def _folders(
    kind: Measured, others: Measured | None, anomalous: bool, alpha: float
) -> list[Folder]:
    """The sub-folders of one kind, those with the worst verdicts first."""
    found = []
    for place in sorted({*kind.places, *kind.failed}):
        part = kind.of(place)
        area = None
        if others is not None and part.files:
            good, bad = (others, part) if anomalous else (part, others)
            area = auroc(good.scores, bad.scores)
        failed = len(part.failed[place])
        found.append(Folder(place, anomalous, len(part.files), failed, area, part.flagged(alpha)))
    return sorted(found, key=_right)


def _right(folder: Folder) -> tuple[float, float]:
    """The share of right verdicts, then the AUROC; a folder without scored images comes last."""
    flagged = 0.0 if folder.flagged is None else folder.flagged.share
    right = flagged if folder.anomalous else 1 - flagged
    return right if folder.images else inf, 1.0 if folder.auroc is None else folder.auroc


def _place(file: Path, named: Sequence[Path]) -> str:
    """The sub-folder directly below the named folder, or the named folder itself."""
    for folder in named:
        if file.is_relative_to(folder) and file != folder:
            below = file.relative_to(folder).parts
            return shown(folder.resolve() / (below[0] if len(below) > 1 else ""))
    return shown(file.parent.resolve())
