"""One sentence about an image, from the ranks of its scores among those of normal images."""

import math
from collections.abc import Mapping

ANOMALOUS = 0.95  # a score is anomalous if this share of normal images scores higher
USUAL = 0.5  # if a smaller share scores higher, the sentence says "well" or "only"
_WORSE = (100, 20, 10)  # "worse than 99 in 100 normal images", and so on


def sentence_of(
    looks_like: str, p_value: float, p_values: Mapping[str, float], calibration_size: int
) -> str:
    """A sentence from the class, the p-value of the verdict, and the p-value of each score.

    Without calibration images the p-value is NaN, and the sentence names only the class.
    """
    if not math.isfinite(p_value):
        return f"closest is {looks_like}" if looks_like else ""
    above = share_above(p_value, calibration_size)
    everyone = f"every one of the {calibration_size:,} calibration images"
    if looks_like and {"pp", "re"} <= p_values.keys():
        pp, re = (share_above(p_values[name], calibration_size) for name in ("pp", "re"))
        return describe(looks_like, above, pp, re, everyone)
    found = [f"closest is {looks_like}"] if looks_like else []
    if share_above(p_values.get("knn", 1.0), calibration_size) >= ANOMALOUS:
        found = ["lies far from all normal images", *found]
    share = f"more anomalous than {_among(above, False, everyone)}"
    return f"{', '.join(found)}: {share}" if found else share


def share_above(p_value: float, calibration_size: int) -> float:
    """The exact share of calibration images with a higher score.

    If k of n images do not score higher, the p-value is (1 + k) / (n + 1).
    """
    return round((1 - p_value) * (calibration_size + 1)) / calibration_size


def describe(
    looks_like: str,
    above: float,
    above_pp: float,
    above_re: float,
    everyone: str = "all normal images",
) -> str:
    """A sentence for a capsule network. The longest capsule is that of the class `looks_like`.

    `above`, `above_pp` and `above_re` are the shares of normal images with a higher score: of the
    verdict, of pp and of re.
    """
    known, good = above_pp < ANOMALOUS, above_re < 1 - 1 / min(_WORSE)
    if known:
        view = f"looks like {looks_like}, {'and' if good else 'but'}"
    else:
        view = f"does not look like any known class, closest is {looks_like}, "
        view += "though" if good else "and"
    view += f" it is reconstructed {_quality(above_re)}"
    if known and good and above >= ANOMALOUS:
        view += ", but both are near the limit"
    only = known and good and above < USUAL
    return f"{view}: more anomalous than {_among(above, only, everyone)}"


def _quality(above_re: float) -> str:
    """The quality of a reconstruction among those of normal images. "badly": worse than all."""
    if above_re >= 1:
        return "badly"
    for many in _WORSE:
        if above_re >= 1 - 1 / many:
            return f"worse than {many - 1} in {many} normal images"
    return "as usual" if above_re >= USUAL else "well"


def _among(share: float, only: bool, everyone: str) -> str:
    if share <= 0:
        return "none of the normal images"
    if share >= 1:
        return everyone
    percent = min(max(100 * share, 0.1), 99.9)  # neither "0.0 %" nor "100.0 %"
    return f"{'only ' if only else ''}{percent:.1f} % of normal images"
