"""Counts of requests and verdicts, in the text format of Prometheus."""

import threading
from collections import Counter, defaultdict
from collections.abc import Iterator

from anocaps.base.text import printable

_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)  # seconds
_ROUTES = ("/api/score", "/api/models", "/api/jobs", "/api/rows", "/api/photos", "/api/uploads",
           "/api/events", "/health", "/metrics", "/static")  # fmt: skip
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH")


class Metrics:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, str, int]] = Counter()  # route, method, status
        self._seconds: dict[str, list[float]] = defaultdict(lambda: [0.0] * (len(_BOUNDS) + 2))
        self._images: Counter[tuple[str, str]] = Counter()  # model, verdict

    def request(self, path: str, method: str, status: int, seconds: float) -> None:
        route = next((each for each in _ROUTES if path.startswith(each)), "other")
        method = method if method in _METHODS else "other"  # a client may send any text
        with self._lock:
            self._requests[route, method, status] += 1
            buckets = self._seconds[route]
            for k, bound in enumerate(_BOUNDS):
                buckets[k] += seconds <= bound
            buckets[-2] += 1
            buckets[-1] += seconds

    def image(self, model: str, verdict: str | None) -> None:
        with self._lock:
            self._images[model, verdict or "none"] += 1

    def text(self, waiting: int) -> str:
        with self._lock:
            return "\n".join(self._lines(waiting)) + "\n"

    def _lines(self, waiting: int) -> Iterator[str]:
        yield "# TYPE anocaps_requests_total counter"
        for (route, method, status), count in self._requests.items():
            labels = f'route="{route}",method="{method}",status="{status}"'
            yield f"anocaps_requests_total{{{labels}}} {count}"
        yield "# TYPE anocaps_request_seconds histogram"
        for route, buckets in self._seconds.items():
            for bound, number in zip((*_BOUNDS, "+Inf"), buckets):
                yield f'anocaps_request_seconds_bucket{{route="{route}",le="{bound}"}} {number:.0f}'
            yield f'anocaps_request_seconds_count{{route="{route}"}} {buckets[-2]:.0f}'
            yield f'anocaps_request_seconds_sum{{route="{route}"}} {buckets[-1]:.6f}'
        yield "# TYPE anocaps_queue_images gauge"
        yield f"anocaps_queue_images {waiting}"
        yield "# TYPE anocaps_images_total counter"
        models: dict[str, Counter[str]] = defaultdict(Counter)
        for (model, verdict), count in self._images.items():
            models[model][verdict] += count
            yield f'anocaps_images_total{{model="{_text(model)}",verdict="{verdict}"}} {count}'
        yield "# TYPE anocaps_flagged_share gauge"
        for model, verdicts in models.items():
            judged = verdicts["anomalous"] + verdicts["normal"]
            share = verdicts["anomalous"] / max(1, judged)
            yield f'anocaps_flagged_share{{model="{_text(model)}"}} {share:.6f}'


def _text(value: str) -> str:
    return printable(value).replace("\\", r"\\").replace('"', r"\"")
