"""Read many image files in threads: each file comes with its header, its pixels or its error."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from anocaps.base.threads import in_order
from anocaps.images.decode import Fit, Header, ImageError, Pixels, read_header, read_image

Result = TypeVar("Result")


def read_headers(files: Iterable[Path]) -> Iterator[tuple[Path, Header | ImageError]]:
    """Each file with its header or its error."""
    return in_order(lambda file: (file, _or_error(read_header, file)), files)


def read_images(
    files: Iterable[Path], fit: Fit, ahead: int = 64
) -> Iterator[tuple[Path, Pixels | ImageError]]:
    """Each file with its pixels H×W×C or its error. At most `ahead` results are waiting."""
    return read_contents(((file, None) for file in files), fit, ahead)


def read_contents(
    files: Iterable[tuple[Path, bytes | None]], fit: Fit, ahead: int = 64
) -> Iterator[tuple[Path, Pixels | ImageError]]:
    """The same for files whose bytes may be known already."""

    def read(each: tuple[Path, bytes | None]) -> tuple[Path, Pixels | ImageError]:
        path, content = each
        return path, _or_error(lambda file: read_image(file, fit, content), path)

    return in_order(read, files, ahead)


def _or_error(work: Callable[[Path], Result], file: Path) -> Result | ImageError:
    try:
        return work(file)
    except ImageError as error:
        return error
