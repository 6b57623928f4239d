"""Where tasks run: in this process, in processes of this computer, or on a Ray cluster.

Others use `choose.open_engine`, and `base` for `collect` and its types. Ray is imported only where
it is asked for.
"""
