"""The paper's claims (`paper`), the rules they are made of, and the verdicts (`judge`).

Others use `judge`; `quantities` and `words` serve the rules.
"""
