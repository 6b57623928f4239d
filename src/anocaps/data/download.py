"""Download missing dataset files, with a progress bar, and check their pinned checksums."""

import shutil
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from anocaps.base.errors import AnocapsError, DataError
from anocaps.base.files import one_run, replacing

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_SCHEMES = ("https",)  # of addresses
_PATIENCE = 3600.0  # seconds to wait for another process that downloads the same file


@dataclass(frozen=True)
class RemoteFile:
    """A published file. `name` is its name after decompression."""

    name: str
    base_url: str
    size: int  # bytes of the download
    sha256: str  # of the download
    content: str  # "sha256:…" or "md5:…" of the decompressed content
    archive: str = ""  # the .tar.gz that contains this file, unless it is published alone

    @property
    def download(self) -> str:
        return self.archive or f"{self.name}.gz"

    @property
    def url(self) -> str:
        return self.base_url + self.download


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
    """Download the files into `folder`. A file with another checksum is not kept.

    What a killed run left of a file is removed before the file is downloaded again.
    """
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
        for file in {each.url: each for each in files}.values():
            bar = _Bar(progress, progress.add_task(file.download, total=file.size))
            fetch = pooch.HTTPDownloader(
                progressbar=bar,
                headers={"Accept-Encoding": "identity"},
                hooks={"response": lambda answer, **_: _check_address(answer.url)},
            )
            try:
                _check_address(file.url)
                with one_run(folder / file.download, _PATIENCE):
                    _obtain(file, folder, fetch)
                    if file.archive:
                        _unpack(folder / file.archive, {other.name for other in files})
            except AnocapsError:
                raise
            except (OSError, ValueError) as error:  # ValueError: wrong checksum
                names = {path.name.removesuffix(".gz") for path in folder.glob("*")}
                missing = [other for other in files if other.name not in names]
                raise DataError(
                    f"{file.url} could not be downloaded ({_reason(error)}); "
                    f"{where_to_put(missing, folder)}"
                ) from error


def _obtain(file: RemoteFile, folder: Path, fetch: Callable[[str, str, None], None]) -> None:
    """Download a file, unless a killed run or another process has done so."""
    from pooch.hashes import hash_matches

    target, known = folder / file.download, f"sha256:{file.sha256}"
    if not (target.is_file() and hash_matches(target, known)):
        with replacing(target) as temporary:
            fetch(file.url, str(temporary), None)
            hash_matches(temporary, known, strict=True)


def _check_address(url: str) -> None:
    """Refuse addresses without encryption. An answer is checked too: it may be redirected."""
    if urlsplit(url).scheme not in _SCHEMES:
        raise OSError("its address is not https")


def _unpack(archive: Path, names: set[str]) -> None:
    """Extract the files with these names, then delete the archive."""
    with tarfile.open(archive) as members:
        for member in members:
            name = PurePosixPath(member.name).name
            if name in names and (source := members.extractfile(member)) is not None:
                with replacing(archive.with_name(name)) as temporary, open(temporary, "wb") as file:
                    shutil.copyfileobj(source, file)
    archive.unlink()


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
    """The end of a message: which files to copy where."""
    names = ", ".join(file.name for file in files)
    return (
        f"put {names} (plain or .gz) into {folder}, or set another data folder with "
        "--data-dir or ANOCAPS_DATA."
    )
