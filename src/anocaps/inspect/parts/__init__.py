"""Millions of images, on one computer or on a cluster: a folder of Parquet files, part by part.

Others use `scoring.score_parts`, `sources` and `folder`.
"""
