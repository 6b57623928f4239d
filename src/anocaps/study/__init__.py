"""The paper's protocol: classes held out in turn, balanced test sets, one result per cell.

Others use `protocol`, `cell`, `runner`, `studies` and `reports`; `report/` makes the pages.
"""
