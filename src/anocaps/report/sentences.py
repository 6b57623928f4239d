"""One plain sentence on one image, from where its scores lie among the normal images'."""

ODD = 0.95  # a score is odd when this share of normal images scores higher
USUAL = 0.5  # and nothing to remark below this one


def describe(looks_like: str, odder: float, odder_pp: float, odder_re: float) -> str:
    """Say what the network made of an image.

    `looks_like` is the class of the longest capsule; `odder` (PP+RE), `odder_pp`
    and `odder_re` are the shares of normal images with a higher score.
    """
    known, drawn = odder_pp < ODD, odder_re < ODD
    if known:
        view = f"looks like {looks_like}, {'and' if drawn else 'but'}"
    else:
        view = f"does not look like any known class, closest is {looks_like}, "
        view += "though" if drawn else "and"
    view += f" redrawn {_quality(odder_re)}"
    if known and drawn and odder >= ODD:
        view += ", but both only just"
    only = known and drawn and odder < USUAL
    return f"{view}: odder than {_among(odder, only)}"


def _quality(odder_re: float) -> str:
    if odder_re >= ODD:
        return "badly"
    return "fairly well" if odder_re >= USUAL else "well"


def _among(share: float, only: bool) -> str:
    if share <= 0:
        return "none of the normal images"
    if share >= 1:
        return "all normal images"
    percent = min(max(100 * share, 0.1), 99.9)  # "100.0 %" would say all
    return f"{'only ' if only else ''}{percent:.1f} % of normal images"
