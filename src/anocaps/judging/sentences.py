"""One plain sentence on one image, from where its scores lie among the normal images'."""

import math
from collections.abc import Mapping

ODD = 0.95  # a score is odd when this share of normal images scores higher
USUAL = 0.5  # and nothing to remark below this one
_WORSE = (100, 20, 10)  # "worse than 99 in 100 normal images", where that is so


def sentence_of(
    looks_like: str, p_value: float, p_values: Mapping[str, float], calibration_size: int
) -> str:
    """What was found, from the class, the p-value that decides and those of each score function,
    where known. A p-value that is not a number is of a model without calibration images.
    """
    if not math.isfinite(p_value):
        return f"closest is {looks_like}" if looks_like else ""
    odder = more_anomalous_than(p_value, calibration_size)
    everyone = f"every one of the {calibration_size:,} calibration images"
    if looks_like and {"pp", "re"} <= p_values.keys():
        pp, re = (more_anomalous_than(p_values[name], calibration_size) for name in ("pp", "re"))
        return describe(looks_like, odder, pp, re, everyone)
    found = [f"closest is {looks_like}"] if looks_like else []
    if more_anomalous_than(p_values.get("knn", 1.0), calibration_size) >= ODD:
        found = ["lies far from all normal images", *found]
    share = f"odder than {_among(odder, False, everyone)}"
    return f"{', '.join(found)}: {share}" if found else share


def more_anomalous_than(p_value: float, calibration_size: int) -> float:
    """The share of calibration images with a higher score, exactly.

    Of n, k do not score higher when the p-value is (1 + k) / (n + 1): at the smallest one, which
    is 1 / (n + 1), all of them do.
    """
    return round((1 - p_value) * (calibration_size + 1)) / calibration_size


def describe(
    looks_like: str,
    odder: float,
    odder_pp: float,
    odder_re: float,
    everyone: str = "all normal images",
) -> str:
    """Say what the network made of an image.

    `looks_like` is the class of the longest capsule; `odder` (of the score that decides),
    `odder_pp` and `odder_re` are the shares of normal images with a higher score.
    """
    known, drawn = odder_pp < ODD, odder_re < 1 - 1 / min(_WORSE)
    if known:
        view = f"looks like {looks_like}, {'and' if drawn else 'but'}"
    else:
        view = f"does not look like any known class, closest is {looks_like}, "
        view += "though" if drawn else "and"
    view += f" redrawn {_quality(odder_re)}"
    if known and drawn and odder >= ODD:
        view += ", but both only just"
    only = known and drawn and odder < USUAL
    return f"{view}: odder than {_among(odder, only, everyone)}"


def _quality(odder_re: float) -> str:
    """How well it was redrawn, among normal images: "badly" is worse than all of them."""
    if odder_re >= 1:
        return "badly"
    for many in _WORSE:
        if odder_re >= 1 - 1 / many:
            return f"worse than {many - 1} in {many} normal images"
    return "as usual" if odder_re >= USUAL else "well"


def _among(share: float, only: bool, everyone: str) -> str:
    if share <= 0:
        return "none of the normal images"
    if share >= 1:
        return everyone
    percent = min(max(100 * share, 0.1), 99.9)  # "100.0 %" would say all
    return f"{'only ' if only else ''}{percent:.1f} % of normal images"
