"""Outputs are written whole, where links point, by one run at a time."""

import os

import pytest

from anocaps.base.errors import InputError
from anocaps.base.files import check_writable, one_run, write_text


def test_a_link_stays_and_its_file_is_written(tmp_path):
    (tmp_path / "real").mkdir()
    link, target = tmp_path / "link.csv", tmp_path / "real" / "target.csv"
    link.symlink_to(target)
    for text in ("first", "second"):  # where it points there is nothing, then something
        check_writable(link)
        write_text(link, text)
        assert link.is_symlink() and target.read_text() == text
    assert [path.name for path in target.parent.iterdir()] == ["target.csv"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_where_a_link_points_must_be_writable(tmp_path):
    (tmp_path / "real").mkdir(mode=0o500)
    (tmp_path / "link.csv").symlink_to(tmp_path / "real" / "target.csv")
    with pytest.raises(PermissionError, match=r"cannot be written to.*real"):
        check_writable(tmp_path / "link.csv")


def test_a_link_into_a_file_is_refused(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "link.csv").symlink_to(tmp_path / "file" / "target.csv")
    with pytest.raises(NotADirectoryError, match="is a file, not a folder"):
        check_writable(tmp_path / "link.csv")


def test_what_is_no_ordinary_file_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "link.csv").symlink_to(tmp_path / "pipe.csv")
    for name in ("pipe.csv", "link.csv"):
        with pytest.raises(OSError, match="is a pipe or a device, name an ordinary file") as error:
            check_writable(tmp_path / name)
        assert error.value.filename == str(tmp_path / name)


def test_one_run_at_a_time_by_whatever_name(tmp_path):
    pytest.importorskip("fcntl", reason="there are no such locks here")
    path, link = tmp_path / "new" / "model.safetensors", tmp_path / "link.safetensors"
    link.symlink_to(path)
    for first, second in ((path, link), (link, path)):
        with (
            one_run(first),
            pytest.raises(InputError, match=f"{second.name} is being written by another run"),
            one_run(second),
        ):
            pass
    with one_run(path):
        pass
    assert list(path.parent.iterdir()) == []
