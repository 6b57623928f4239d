"""Rules that serve one claim each."""

from collections.abc import Sequence

import numpy as np

from anocaps.study.claims import quantities
from anocaps.study.claims.rules import PP, RE, Contender, Rule, T, View, classes_of, listed
from anocaps.study.claims.words import Finding, Number


def follows_similarity(more: Contender, less: Contender, datasets: Sequence[str]) -> Rule:
    """The AUROC of one score falls faster with the similarity of the classes than the other's.

    Similarity is the distance of a held-out class to the nearest training images of other classes.
    """

    def check(view: View) -> Finding:
        numbers, true = [], []
        for dataset in datasets:
            aurocs = view.table(dataset, (more, less), classes_of(dataset))
            distances = quantities.distances_to_others(dataset, view.data_dir)
            distances = (distances - distances.mean()) / distances.std()
            slopes = [float(np.polyfit(distances, each, 1)[0]) for each in aurocs]
            numbers += [Number(c.label, s, place=dataset) for c, s in zip((more, less), slopes)]
            true.append(slopes[0] - max(slopes[1], 0) > T.above)
        return Finding(all(true), tuple(numbers))

    return Rule(
        f"AUROC gained per standard deviation of the distance to other classes: {more.label} more "
        f"than {less.label}, and more than nothing, on every dataset",
        check,
    )


def some_combination_is_more_robust(others: Sequence[Contender], datasets: Sequence[str]) -> Rule:
    """The worst class of joined scores is better than the worst class of PP and of RE.

    PP and RE are joined with one other method, or with all of them.
    """
    partners = {f"with {other.label}": (other,) for other in others} | {"with all": others}

    def check(view: View) -> Finding:
        numbers: list[Number] = []
        robust = dict.fromkeys(partners, True)
        for dataset in datasets:
            names = classes_of(dataset)
            alone = view.table(dataset, (PP, RE), names).min(axis=1)
            together = {
                label: min(view.auroc_together(dataset, n, (PP, RE, *chosen)) for n in names)
                for label, chosen in partners.items()
            }
            lowest = {PP.label: float(alone[0]), RE.label: float(alone[1])} | together
            numbers += [Number(label, value, place=dataset) for label, value in lowest.items()]
            for label, value in together.items():
                robust[label] &= bool(value - alone.max() > T.above)
        return Finding(any(robust.values()), tuple(numbers))

    return Rule(
        "lowest AUROC over the classes: for at least one combination, the mean rank (among normal "
        f"images) of PP, RE and the scores of {listed(others)}, or of all of them, is higher than "
        "PP and RE everywhere",
        check,
    )
