"""The result of the acceptance test, as text and as a self-contained page."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from anocaps.base.files import write_text
from anocaps.base.text import shown
from anocaps.images.decode import Fit
from anocaps.images.reading import read_images
from anocaps.inspect.acceptance import Acceptance, AtAlpha, Folder, Measured, Share
from anocaps.inspect.card import pretrained
from anocaps.judging.judgement import Judge
from anocaps.judging.metrics import roc_curve
from anocaps.pages.charts import histogram, line_chart
from anocaps.pages.rendering import render

_GUESSING = 0.5  # the AUROC of random scores
_MOST_FOLDERS = 20  # that are printed
_MOST_IMAGES = 12  # of each kind of error, on the page
_THUMBNAIL = 128  # pixels a side


def sentences(test: Acceptance) -> list[str]:
    """The result for a terminal."""
    said = [tested(test), *conclusions(test)]
    said += [_at_alpha(each, test.calibration_size) for each in test.at if test.calibration_size]
    rate = f", at a false-alarm rate of {_percent(test.alpha)}" if test.calibration_size else ""
    said += [f"By folder{rate}:", *(f"  {_folder(each)}" for each in test.folders[:_MOST_FOLDERS])]
    if (more := len(test.folders) - _MOST_FOLDERS) > 0:
        said.append(f"  and {more:,} more; -o report.html lists all")
    return said


def tested(test: Acceptance) -> str:
    anomalous = f" and {test.anomalous:,} anomalous" if test.anomalous else ""
    said = [f"score function {test.score_function}", pretrained(test.pretrained)]
    counts = f"{test.normal:,} normal{anomalous} images, {', '.join(filter(None, said))}."
    if test.auroc is None:
        return counts
    interval = f"{test.auroc_low:.3f} to {test.auroc_high:.3f}"
    return f"{counts} AUROC {test.auroc:.3f} ({interval}): 1 is perfect, 0.5 is guessing."


def conclusions(test: Acceptance) -> list[str]:
    """Warnings for the user."""
    said = []
    if test.auroc_low is not None and test.auroc_low <= _GUESSING:
        said.append("This test does not show that the model is better than guessing.")
    if not test.calibration_size:
        said.append("The model has no calibration set: it gives scores, no verdicts.")
    if any(each.too_many for each in test.at):
        said.append(
            "Far more false alarms than promised: these normal images differ from those of "
            "training. Compare camera, light and kind, or train with such images."
        )
    return said


def _at_alpha(at: AtAlpha, calibration_size: int) -> str:
    start = f"At a false-alarm rate of {_percent(at.alpha)}"
    if at.false_alarms is None:
        return (
            f"{start}: needs {at.needs:,} calibration images, the model has {calibration_size:,}."
        )
    found = "" if at.found is None else f"{_share(at.found)} anomalies found, "
    return f"{start}: {found}{_share(at.false_alarms)} false alarms."


def _folder(folder: Folder) -> str:
    said = [f"{folder.images:,} {'anomalous' if folder.anomalous else 'normal'}"]
    if folder.flagged is not None:
        said.append(f"{_percent(folder.flagged.share)} flagged")
    if folder.auroc is not None:
        said.append(f"AUROC {folder.auroc:.3f}")
    if folder.failed:
        said.append(f"{folder.failed:,} not scored")
    return f"{brief(folder.folder)}: {', '.join(said)}"


def brief(folder: str) -> str:
    """The last two parts of a folder's path."""
    return "/".join(Path(folder).parts[-2:])


def _share(share: Share) -> str:
    interval = f"{100 * share.low:.0f} to {_percent(share.high, 0)}"
    return f"{share.flagged:,} of {share.images:,} ({_percent(share.share, 0)}, {interval})"


def _percent(share: float, decimals: int | None = None) -> str:
    return f"{100 * share:.3g} %" if decimals is None else f"{100 * share:.{decimals}f} %"


# ── the page ─────────────────────────────────────────────────────────────────────────────────


def write_page(
    path: Path,
    model: Path,
    judge: Judge,
    test: Acceptance,
    normal: Measured,
    anomalous: Measured | None,
) -> None:
    kinds = {"normal": normal} | ({} if anomalous is None else {"anomalous": anomalous})
    finite = {name: kind.scores[np.isfinite(kind.scores)] for name, kind in kinds.items()}
    scores = roc = ""
    if all(len(values) for values in finite.values()):
        label = f"{test.score_function} score, higher is more normal"
        scores = histogram(finite, "Histogram of scores", label)
    if anomalous is not None:
        curve = {f"AUROC {test.auroc:.3f}": roc_curve(normal.scores, anomalous.scores)}
        roc = line_chart(curve, "ROC curve", "false alarms", "anomalies found")
    page = render(
        "acceptance.html",
        title=f"Test of {shown(model.name)}",
        lead=tested(test),
        test=test,
        brief=brief,
        conclusions=conclusions(test),
        scores=scores,
        roc=roc,
        errors=list(_errors(judge, test, normal, anomalous)),
    )
    write_text(path, page)


def _errors(
    judge: Judge, test: Acceptance, normal: Measured, anomalous: Measured | None
) -> Iterator[dict[str, Any]]:
    """Wrong verdicts at the alpha of the test: the worst of each kind, with their images."""
    if not judge.calibration_size:
        return
    if anomalous is not None:
        missed = np.flatnonzero(anomalous.p_values > test.alpha)
        worst = missed[np.argsort(-anomalous.p_values[missed], kind="stable")]
        yield _error("Missed anomalies", judge, anomalous, worst)
    alarms = np.flatnonzero(normal.p_values <= test.alpha)
    worst = alarms[np.argsort(normal.scores[alarms], kind="stable")]
    yield _error("False alarms", judge, normal, worst)


def _error(title: str, judge: Judge, kind: Measured, worst: Any) -> dict[str, Any]:
    fit = judge.fit
    small = Fit(_THUMBNAIL, _THUMBNAIL, fit.channels, "letterbox", fit.white, "border")
    files = {kind.files[k]: kind.p_values[k] for k in worst[:_MOST_IMAGES]}
    images = [
        {"file": shown(file), "pixels": pixels, "p_value": files[file]}
        for file, pixels in read_images(files, small)
        if isinstance(pixels, np.ndarray)  # a file may have been removed
    ]
    return {"title": title, "count": len(worst), "images": images}
