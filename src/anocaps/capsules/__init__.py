"""The mathematics of capsules: the textbook network, squash, routing, margin loss.

Start with `textbook.py`: it is the reference of every faster form. Others use `squash`, `routing`
and `margin`.
"""
