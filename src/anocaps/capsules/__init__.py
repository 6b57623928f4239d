"""The mathematics of capsules.

Start with `textbook.py`: the whole network on one page, the reference for every faster form.
Other rooms use its functions and `routing.route`, which stores no votes.
"""
