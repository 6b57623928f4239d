"""The sizes of image files, and sentences on what becomes of them."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from anocaps.images.decode import Fit, Header
from anocaps.images.resampling import working_size

_DISTORTED = 1.1  # a larger change of the aspect ratio is mentioned


@dataclass(frozen=True)
class Sizes:
    files: int
    widths: tuple[int, int]  # smallest and largest, in pixels
    heights: tuple[int, int]
    common: tuple[int, int]  # the most common width and height
    count: int  # files of the most common size


def sizes_of(seen: Iterable[Header]) -> Sizes:
    counts = Counter((one.width, one.height) for one in seen)
    common, count = counts.most_common(1)[0]
    widths, heights = ((min(sides), max(sides)) for sides in zip(*counts))
    return Sizes(counts.total(), widths, heights, common, count)


def describe_sizes(sizes: Sizes) -> str:
    """The range of widths and heights, and the most common size."""
    common = f"{sizes.common[0]}×{sizes.common[1]}"
    if sizes.count == sizes.files:
        return f"All are {common} pixels."
    share = f"{sizes.count:,} of {sizes.files:,} are {common}"
    return f"Widths {_range(sizes.widths)}, heights {_range(sizes.heights)} pixels; {share}."


def describe_size(sizes: Sizes, fit: Fit, photo: bool = False, shorter: int | None = None) -> str:
    """What becomes of the most common size: "271×328 becomes 256×310".

    Preset `photo` sees its working size, whose shorter side may be given.
    """
    if photo:
        seen = working_size(fit.height, fit.width, shorter)
        if seen[0] > fit.height:
            return f"The network enlarges them to {seen[1]}×{seen[0]}."
        fit = replace(fit, height=seen[0], width=seen[1])
    width, height = sizes.common
    if (width, height) == (fit.width, fit.height):
        return f"{width}×{height} stays as it is."
    across, down = fit.width / width, fit.height / height
    if fit.how == "resize":
        distorted = max(across, down) > _DISTORTED * min(across, down)
        return f"{width}×{height} becomes {fit.width}×{fit.height}{', distorted' * distorted}."
    scale = (min if fit.how == "letterbox" else max)(across, down)
    scaled = f"{max(1, round(scale * width))}×{max(1, round(scale * height))}"
    rest = "inside" if fit.how == "letterbox" else "cut to"
    return f"{width}×{height} becomes {scaled}, {rest} {fit.width}×{fit.height}."


def _range(sides: tuple[int, int]) -> str:
    low, high = sides
    return f"{low}" if low == high else f"{low} to {high}"
