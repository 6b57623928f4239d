"""The paper's study: classes held out in turn, one result file per cell, claims and reports.

Others use `studies`, `protocol`, `cell`, `plan`, `runner`, `packed`, `reports` and `demo`;
`report/` makes the pages.
"""
