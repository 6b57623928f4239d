"""The folders of dataset files, and the hashes of their content."""

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path

from anocaps.base.files import write_text
from anocaps.data.binary import chunks


def data_dir(explicit: str | Path | None = None) -> Path:
    """The folder of all datasets: the argument, or ANOCAPS_DATA, or the user's cache folder."""
    if explicit is not None:
        return Path(explicit).expanduser()
    named = os.environ.get("ANOCAPS_DATA")
    return Path(named).expanduser() if named else user_cache()


def user_cache() -> Path:
    from platformdirs import user_cache_path

    return user_cache_path("anocaps")


def writable(folder: Path) -> bool:
    """Whether files can be created there. A folder without write bits counts as read-only."""
    folder = folder.absolute()
    while not folder.exists():
        folder = folder.parent
    return os.access(folder, os.W_OK) and bool(folder.stat().st_mode & 0o222)


def writable_root(root: Path) -> Path:
    """The folder for downloads: the data folder, or the user's cache if it is read-only."""
    return root if writable(root) else user_cache()


def cache_dir() -> Path:
    """The folder for hashes, outside the data folder."""
    return user_cache() / "cache"


def find(root: Path, folders: tuple[str, ...], name: str) -> Path | None:
    """The file `name`, plain or with .gz, in one of the dataset's folders."""
    for place in dict.fromkeys((root, writable_root(root))):
        for folder in folders:
            for path in (place / folder / name, place / folder / f"{name}.gz"):
                if path.is_file():
                    return path
    return None


def content_hashes(path: Path) -> dict[str, str]:
    """sha256 and md5 of the decompressed content, which gzip can store in many ways.

    A JSON file caches them by path, size and modification time.
    """
    stat = path.stat()
    key = f"{path.resolve()}|{stat.st_size}|{stat.st_mtime_ns}"
    memory = cache_dir() / "hashes.json"
    known = _load(memory)
    if key not in known:
        sha256, md5 = hashlib.sha256(), hashlib.md5(usedforsecurity=False)
        for chunk in chunks(path):
            sha256.update(chunk)
            md5.update(chunk)
        known[key] = {"sha256": sha256.hexdigest(), "md5": md5.hexdigest()}
        with suppress(OSError):  # without a cache, every load computes them
            write_text(memory, json.dumps(known, indent=1))
    return known[key]


def _load(memory: Path) -> dict[str, dict[str, str]]:
    try:
        return dict(json.loads(memory.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):  # missing or damaged
        return {}
