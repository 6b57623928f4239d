"""The report of a study: page, figures, tables, made from result files alone.

`study/reports.py` calls `page`; `study/demo.py` calls `demo`.
"""
