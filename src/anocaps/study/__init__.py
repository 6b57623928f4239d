"""The paper's study: classes held out in turn, one result file per cell, claims and reports.

Others use `studies`, `protocol`, `cell`, `plan`, `runner`, `resultfile`, `reports` and `demo`;
`report/` makes the pages.
"""
