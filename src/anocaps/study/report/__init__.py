"""The report of a study: page, figures, tables, made from result files alone.

`reports.py`, one floor up, calls `page` and `ablation`; `demo` is the page of `anocaps demo`.
"""
