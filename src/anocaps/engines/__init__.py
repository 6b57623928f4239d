"""Where tasks run: in this process, in processes of this computer, or on a Ray cluster.

Other rooms use `choose.open_engine`, and from `base` the function `collect` and its types. Ray is
imported only if the Ray engine is opened.
"""
