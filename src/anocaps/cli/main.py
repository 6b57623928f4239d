"""The entry point of the command line. It handles Ctrl-C before it imports anything slow.

Exit codes: 0 done, 1 a study with failed cells, 2 an error that the user can correct, 130 stopped
with Ctrl-C.
"""

import io
import os
import sys
import warnings

from anocaps.base.errors import AnocapsError
from anocaps.base.text import printable
from anocaps.cli.terminal import Stopped, hear_stop, stop_kept


def main() -> None:
    """Run a command; an error that the user can correct becomes one line and exit code 2."""
    try:
        hear_stop()
        # Threads of torch that wait would take the cores of a busy computer for milliseconds from
        # those that work. libgomp reads this when torch is imported.
        os.environ.setdefault("GOMP_SPINCOUNT", "20000")
        for stream in (sys.stdout, sys.stderr):  # escape what the terminal cannot show
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        warnings.showwarning = _print_warning
        # our own limits replace this one of Pillow
        warnings.filterwarnings("ignore", "Image size .* exceeds limit")
        with stop_kept():
            from anocaps.cli.app import app

            app()
    except AnocapsError as error:
        _fail(str(error))
    except ImportError as error:
        from anocaps.base.extras import how_to_install

        if (advice := how_to_install(error)) is None:
            raise
        _fail(advice)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _fail(f"{where}{error.strerror or error}")
    except MemoryError as error:
        what = f" ({error})" if str(error) else ""
        _fail(f"there is not enough memory{what}: free some, or use smaller or fewer images")
    except Stopped as stopped:
        print(printable(f"Stopped. {stopped}".strip()), file=sys.stderr)
        sys.exit(130)


def _print_warning(
    message: Warning | str, category: type[Warning], filename: str, *_: object, **__: object
) -> None:
    # Pillow may warn a thousand times of one file, which is read or refused in our own words
    if os.path.basename(os.path.dirname(filename)) == "PIL":
        return
    print(f"Warning: {printable(str(message))}", file=sys.stderr)


def _fail(message: str) -> None:
    print(f"Error: {printable(message)}", file=sys.stderr)
    sys.exit(2)
