"""`study status` prints names and errors of files that anybody may have written."""

import json

import pytest


@pytest.fixture
def folder(tmp_path):
    """A study whose only cell failed: its names are markup and control characters."""
    place = tmp_path / "%1B%5B2J" / "%5B%2Fbold%5D"
    place.mkdir(parents=True)
    entry = {"dataset": "\x1b[2J", "method": "[/bold]", "fingerprint": "f"}
    plan = {"%1B%5B2J/%5B%2Fbold%5D/0-seed0": entry}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    return tmp_path


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "unknown error"), (b"\n \n", "unknown error"), (b"Traceback\nOops\r\n\n", "Oops"),
        (b"Oops \xff\xfe", "Oops \\xff\\xfe"), (b"one\nOops \x1b[31m", "Oops \\x1b[31m"),
    ],
)  # fmt: skip
def test_names_and_errors_of_any_content_are_printed_harmlessly(command, folder, content, says):
    (failed := folder / "%1B%5B2J" / "%5B%2Fbold%5D" / "0-seed0.failed").write_bytes(content)
    code, out, errors = command("study", "status", "--folder", folder)
    assert (code, errors) == (0, "") and "\x1b" not in out
    assert "[/bold]" in out and "\\x1b[2J" in out
    assert f"Failed: {failed}: {says}" in out.splitlines()
