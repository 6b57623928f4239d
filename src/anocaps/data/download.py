"""Download missing dataset files with pinned checksums and a progress bar."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from anocaps.base.errors import DataError

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


@dataclass(frozen=True)
class RemoteFile:
    """A published file: `name` when decompressed, `name`.gz at its address."""

    name: str
    base_url: str
    size: int  # bytes of the .gz
    sha256: str  # of the .gz
    content: str  # "sha256:…" or "md5:…" of the decompressed content

    @property
    def url(self) -> str:
        return f"{self.base_url}{self.name}.gz"


class _Bar:
    """The progress bar interface of pooch, drawn by rich."""

    def __init__(self, progress: "Progress", task: "TaskID") -> None:
        self.total = 0
        self._progress, self._task = progress, task

    def update(self, count: int) -> None:
        self._progress.update(self._task, advance=count)

    def reset(self) -> None:
        self._progress.update(self._task, completed=0)

    def close(self) -> None:
        pass


def download_files(files: Sequence[RemoteFile], folder: Path) -> None:
    """Download the .gz files into `folder`. Only files with the right checksum are kept."""
    import pooch
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    pooch.get_logger().setLevel("WARNING")
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        for file in files:
            bar = _Bar(progress, progress.add_task(f"{file.name}.gz", total=file.size))
            downloader = pooch.HTTPDownloader(
                progressbar=bar, headers={"Accept-Encoding": "identity"}
            )
            try:
                pooch.retrieve(
                    file.url,
                    known_hash=f"sha256:{file.sha256}",
                    fname=f"{file.name}.gz",
                    path=folder,
                    downloader=downloader,
                )
            except (OSError, ValueError) as error:  # network or disk error; wrong checksum
                missing = [other for other in files if not (folder / f"{other.name}.gz").exists()]
                raise DataError(
                    f"{file.url} could not be downloaded ({_reason(error)}); "
                    f"{where_to_put(missing, folder)}"
                ) from error


def _reason(error: Exception) -> str:
    from requests import ConnectionError, HTTPError, Timeout

    if isinstance(error, HTTPError) and error.response is not None:
        return f"the server answered {error.response.status_code}"
    if isinstance(error, ConnectionError | Timeout):
        return "no connection"
    if isinstance(error, ValueError):
        return "wrong checksum"
    return str(error)


def where_to_put(files: Sequence[RemoteFile], folder: Path) -> str:
    """The end of a message: which files to copy by hand, and where to."""
    names = ", ".join(file.name for file in files)
    return (
        f"put {names} (plain or .gz) into {folder}, or name another data folder with "
        "--data-dir or ANOCAPS_DATA."
    )
