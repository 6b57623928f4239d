"""Whatever an HTTP server sends, few bytes are held, and no image is lost or listed twice."""

import gzip
import json
import sys
from collections import Counter
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from itertools import islice
from threading import Thread

import pytest
from PIL import Image
from processes import measured

from anocaps.base.threads import Budget
from anocaps.images.walk import PassedOver
from anocaps.inspect.parts import addresses
from anocaps.inspect.parts.addresses import fetched
from anocaps.inspect.parts.sources import shards_of

pytest.importorskip("aiohttp", reason="http needs aiohttp")

MIDDLE, LARGE = 18_000_000, 100_000_000


@cache
def photo(size: int = 0) -> bytes:
    file = BytesIO()
    Image.new("L", (16, 16), 50).save(file, "PNG")
    return file.getvalue().ljust(size)


def sends() -> dict[str, tuple[bytes, int | None]]:
    """Word of a name → content, and the length that the server tells."""
    packed = gzip.compress(photo(LARGE), 1)
    return {
        "small": (photo(), len(photo())),
        "middle": (photo(MIDDLE), MIDDLE),
        "unsaid": (photo(MIDDLE), None),
        "large": (photo(LARGE), LARGE),
        "endless": (photo(LARGE), None),
        "range": (photo(LARGE), None),
        "less": (photo(LARGE), 40),
        "more": (photo(), LARGE // 10),
        "packed": (packed, len(packed)),
        "cut": (photo(MIDDLE), MIDDLE),
    }


class Careless(BaseHTTPRequestHandler):
    """A server that ignores ranges. The first word of a name says what it sends."""

    def do_GET(self):
        self.server.asked[self.path] += 1
        kind = self.path.strip("/").removesuffix(".png").partition("-")[0]
        content, said = self.server.sends[kind]
        self.send_response(206 if kind == "range" else 200)
        if kind == "range":
            self.send_header("Content-Range", "bytes 0-99/100")
        if kind == "packed":
            self.send_header("Content-Encoding", "gzip")
        if said is not None:
            self.send_header("Content-Length", str(said))
        self.end_headers()
        again = kind != "cut" or self.server.asked[self.path] > 2
        self.wfile.write(content if again else content[: MIDDLE // 2])

    def do_HEAD(self):
        self.send_response(200)
        self.send_header("Content-Length", "100")
        self.end_headers()

    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    request_queue_size = 100

    def handle_error(self, *_):  # a client may close its connection
        pass


@pytest.fixture(scope="module")
def server():
    with Server(("127.0.0.1", 0), Careless) as server:
        server.asked = Counter()
        server.sends = sends()
        Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


READ = """
import json, os, sys
from anocaps.base.threads import Budget
from anocaps.images.decode import Fit, ImageError
from anocaps.inspect.parts import addresses
from anocaps.inspect.parts.sources import Files
os.cpu_count = lambda: 2
addresses.MOST_BYTES = 20_000_000
addresses._held = Budget(20_000_000)
def read(names):
    found = Files(tuple(names), "/").read(Fit(8, 8, 1, "resize"), 256)
    return {name: str(image) if isinstance(image, ImageError) else "" for name, image in found}
names = sys.argv[1:]
read(names[:1])
before = peak()
print(json.dumps([read(names), (peak() - before) // 2**20]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells the peak of memory")
@pytest.mark.parametrize(
    "kind", ["middle", "unsaid", "large", "endless", "range", "less", "packed"]
)
def test_few_bytes_are_held_whatever_a_server_sends(kind, server):
    """16 files of 18 or 100 MB, which two threads ask for together, with a limit of 20 MB."""
    address = f"http://127.0.0.1:{server.server_port}"
    good = [f"{address}/small-{kind}-{number}.png" for number in range(16)]
    given = [f"{address}/{kind}-{number}.png" for number in range(16)]
    names = [*good[:8], *given, *good[8:]]
    found, peak = json.loads(measured(READ, *names))
    assert list(found) == names
    assert not any(found[name] for name in good)
    fits = kind in ("middle", "unsaid")
    assert all(not found[name] if fits else name in found[name] for name in given)
    assert peak < 250  # MiB


def test_a_large_file_counts_until_the_next_one_is_drawn(server, monkeypatch):
    monkeypatch.setattr(addresses, "MOST_BYTES", 20_000_000)
    held = Budget(20_000_000)
    monkeypatch.setattr(addresses, "_held", held)
    address = f"http://127.0.0.1:{server.server_port}"
    free = []
    for found in fetched(
        [f"{address}/{kind}.png" for kind in ("small", "middle", "unsaid", "cut")]
    ):
        assert found in (photo(), photo(MIDDLE))
        free.append(held.free)
    assert free == [20_000_000, 2_000_000, 0, 2_000_000] and held.free == 20_000_000


def test_an_answer_that_breaks_off_is_asked_for_again(server):
    address = f"http://127.0.0.1:{server.server_port}"
    names = [f"{address}/{kind}.png" for kind in ("small", "cut", "more", "cut")]
    server.asked.clear()
    small, cut, more, _ = fetched(names)
    assert (small, cut) == (photo(), photo(MIDDLE))
    assert names[2] in str(more)
    assert server.asked["/small.png"] == 1 and server.asked["/more.png"] == 3


class Pages(BaseHTTPRequestHandler):
    """Pages with links to themselves and to other places."""

    LINKS = (
        "a.png", "x/../", "./", "x/../a.png", "..", "/photos/", "/photos/more/../", "?sort=name",
        "?sort=name/", "#/", "a.png#top", "more//", "/other/b.png", "/photos-2/c.png", ".d.png",
        "more/", "notes.md",
    )  # fmt: skip

    def do_GET(self):
        links = ("e.png", "/photos/", "../") if "more" in self.path else self.LINKS
        content = "".join(f'<a href="{link}">link</a>' for link in links).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


@pytest.mark.parametrize("end", ["", "/"])
def test_a_page_that_links_to_itself_is_read_once(end):
    with Server(("127.0.0.1", 0), Pages) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        top, passed = f"http://127.0.0.1:{server.server_port}/photos", PassedOver()
        cut = islice(shards_of([top + end], passed, True), 5)
        assert [n for s in cut for n in s.names] == [f"{top}/a.png", f"{top}/more/e.png"]
        assert passed.others == {".md": 1}
        server.shutdown()
