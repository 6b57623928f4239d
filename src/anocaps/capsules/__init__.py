"""The mathematics of capsules.

Start with `textbook.py`: the whole network on one page, the reference of every faster form.
Others use its functions, and `routing.route`, which needs no votes.
"""
