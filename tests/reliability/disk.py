"""What a power cut leaves, from a log of all calls: only what was synced is certain.

Two worst cases are built. `synced`: names and data that were not synced are lost. `names`: data
that were not synced are lost, but all names are there, as on a file system that writes names first:
a renamed file can be empty.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from faults import Call

CASES = ("synced", "names")


class _File:
    def __init__(self, data: bytes = b"") -> None:
        self.now, self.synced = bytearray(data), bytes(data)


class _Folder:
    def __init__(self) -> None:
        self.now: dict[str, object] = {}  # name → file, folder or the target of a symbolic link
        self.synced: dict[str, object] = {}


class Disk:
    """A folder as it is on the disk, after some calls."""

    def __init__(self, root: Path) -> None:
        self._root, self._files = root, dict[int, _File]()
        self._top = self._read(root)

    def _read(self, folder: Path) -> _Folder:
        found = _Folder()
        for path in folder.iterdir():
            if path.is_symlink():
                found.now[path.name] = os.readlink(path)
            elif path.is_dir():
                found.now[path.name] = self._read(path)
            else:
                file = self._files[path.stat().st_ino] = _File(path.read_bytes())
                found.now[path.name] = file
        found.synced = dict(found.now)
        return found

    def _at(self, path: str) -> tuple[_Folder, str]:
        *above, name = Path(path).relative_to(self._root).parts
        folder = self._top
        for part in above:
            inner = folder.now[part]
            assert isinstance(inner, _Folder)
            folder = inner
        return folder, name

    def apply(self, calls: Iterable[Call]) -> None:
        for call in calls:
            self._apply(call)

    def _apply(self, call: Call) -> None:
        if call.what in ("mode", "failed"):
            return
        if call.what in ("write", "truncate", "cut"):
            data, end = self._files[call.inode].now, call.offset + len(call.data)
            if call.what == "write":
                data.extend(bytes(max(0, end - len(data))))
                data[call.offset : end] = call.data
            else:
                del data[call.offset :]
                data.extend(bytes(call.offset - len(data)))
        elif call.what == "sync":
            self._sync(call)
        else:
            self._name(call)

    def _sync(self, call: Call) -> None:
        if Path(call.path) == self._root:
            self._top.synced = dict(self._top.now)
            return
        folder, name = self._at(call.path.removesuffix(" (deleted)"))
        found = folder.now.get(name)
        if isinstance(found, _Folder):
            found.synced = dict(found.now)
        else:
            file = self._files[call.inode]
            file.synced = bytes(file.now)

    def _name(self, call: Call) -> None:
        folder, name = self._at(call.path)
        if call.what == "create":
            folder.now[name] = self._files[call.inode] = _File()
        elif call.what == "folder":
            folder.now[name] = _Folder()
        elif call.what == "symlink":
            folder.now[name] = call.other
        elif call.what == "remove":
            del folder.now[name]
        elif call.what in ("rename", "link"):
            target, other = self._at(call.other)
            target.now[other] = folder.now[name] if call.what == "link" else folder.now.pop(name)
        else:
            raise AssertionError(call)

    def leave(self, case: str) -> None:
        """Write what a power cut leaves to the folder, which must be empty."""
        _write(self._top, self._root, synced=case == "synced")


def _write(folder: _Folder, place: Path, synced: bool) -> None:
    for name, found in (folder.synced if synced else folder.now).items():
        if isinstance(found, _Folder):
            (place / name).mkdir()
            _write(found, place / name, synced)
        elif isinstance(found, _File):
            (place / name).write_bytes(found.synced)
        else:
            (place / name).symlink_to(str(found))


def unsynced_renames(calls: list[Call]) -> list[str]:
    """Files that got their name before their content was synced, or whose folder was not synced."""
    wrong, dirty, unsure = [], set[int](), dict[str, str]()  # inodes; folder → name
    for call in calls:
        if call.what in ("create", "write", "truncate", "cut"):
            dirty.add(call.inode)
        elif call.what == "sync":
            dirty.discard(call.inode)
            unsure.pop(call.path, None)
        elif call.what == "rename":
            if call.inode in dirty:
                wrong.append(f"{call.other}: renamed before its content was synced")
            unsure[os.path.dirname(call.other)] = call.other
    return wrong + [f"{name}: its folder is not synced" for name in unsure.values()]
