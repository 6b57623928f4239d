"""Read an HTML page: it must be well-formed."""

from html.parser import HTMLParser
from pathlib import Path

HOSTILE = "\"'><script>alert(1)</script><img src=x onerror=alert(1)>$title & ${x}"
_VOID = {"meta", "img", "br", "wbr", "link", "input"}


class Page(HTMLParser):
    """Tags with their attributes, text, and the cells of every table."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.rows: list[list[str]] = []
        self.folder = path.parent
        self.source = path.read_text("utf-8")
        self.feed(self.source)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)
        if "td" in self.open or "th" in self.open:
            self.rows[-1][-1] += data

    def row(self, *start: str) -> list[str]:
        """The first table row that starts like this."""
        return next(row for row in self.rows if row[: len(start)] == list(start))

    def attributes(self, tag: str, name: str) -> list[str]:
        return [str(attrs[name]) for seen, attrs in self.tags if seen == tag and name in attrs]

    def assert_fetches_nothing(self) -> None:
        """Every image is inside the page; links point into it, or to files beside it."""
        assert "http://" not in self.source and "@import" not in self.source
        assert not {"link", "iframe"} & {tag for tag, _ in self.tags}
        assert not self.attributes("script", "src")
        images = self.attributes("img", "src") + self.attributes("image", "xlink:href")
        assert all(source.startswith("data:image/png") for source in images)
        ids = {attrs.get("id") for _, attrs in self.tags}
        links = self.attributes("a", "href")
        inside = [link for link in links if link[0] == "#"]
        assert all(link[1:] in ids for link in inside)
        assert all((self.folder / link).is_file() for link in links if link not in inside)

    def assert_hostile_is_text(self) -> None:
        assert HOSTILE in "".join(self.text)
        assert "<script>alert" not in self.source
        assert not any(name.startswith("on") for _, attrs in self.tags for name in attrs)
