"""One file per command or group of commands; `cli.app` collects them.

Two commands share a file with another: `demo` is in evaluate.py, `keygen` in sign.py.
"""
