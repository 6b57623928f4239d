"""The model card in words: what a model was trained on and what to expect of it. No torch."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from anocaps.base.text import shown
from anocaps.images.walk import passed_over
from anocaps.judging.calibration import USUAL_ALPHA, needed_for, rounded_up
from anocaps.judging.spread import auroc_range, rate_range

Card = dict[str, Any]

POOR = 0.7  # an AUROC below this is said to be poor
_FEW_TESTED = 30  # odd images left out at once: with fewer the AUROC is a rough guess
_ASKED_FOR = "it was asked for"  # the reason for a score that no self-check chose
_STRICT_ALPHA = 0.01  # what many will ask for: it is said where images are too few for it
_BEST_OF_SEVERAL = ", or a little less, as the score is the best of several by these same figures"
_NAMED_AT_MOST = 10
_KEPT_AT_MOST = 100  # names of skipped files, of any number, and extensions of others
_PLENTY = 10_000  # calibration images: with more, the rate is alpha within half a percent


def add_files(
    card: Card,
    fit: str,
    skipped: Sequence[tuple[Path, str]],
    copies: int,
    others: Sequence[tuple[str, int]],
) -> None:
    """How images were read (`pictures.describe`), which could not be, with the reason, how many
    were left out as copies of another, and what else lay there, by extension."""
    card["fit"] = fit
    card["skipped"] = len(skipped)
    card["skipped_files"] = [[str(file), why] for file, why in skipped[:_KEPT_AT_MOST]]
    card["copies"] = copies
    card["passed_over"] = dict(others[:_KEPT_AT_MOST])


def add_check(card: Card, check: dict[str, Any], score_function: str, reason: str) -> None:
    """What the self-check found, and the score that was chosen by it or otherwise."""
    card |= {"self_check": check, "score_function": score_function, "score_function_reason": reason}


def four_lines(card: Card, next_command: str) -> list[str]:
    """How well it works, false alarms, the weakest class and the next command."""
    return [*_how_well(card), *_alarms(card), *_weakest(card), f"Next: {next_command}"]


def _how_well(card: Card) -> Iterator[str]:
    expected = expected_auroc(card)
    if expected is None:
        why = (card["self_check"] or {}).get("skipped", "there was no self-check")
        yield f"How well: not known ({why[0].lower()}{why[1:]})."
    elif any(_not_learned(card)):
        yield "How well: poorly. The network did not learn to tell your classes apart."
    else:
        low, high = promised_range(card)
        yield (
            f"How well: expect an AUROC of {expected:.2f} ({_from_to(low, high)}) for images of "
            "an unknown class; 0.5 is guessing, 1 is perfect."
        )


def _alarms(card: Card) -> Iterator[str]:
    if card["smallest_alpha"] is None:
        yield "False alarms: not known; no images were kept to set a rate."
        return
    alpha = max(USUAL_ALPHA, rounded_up(card["smallest_alpha"]))
    low, high = (100 * rate for rate in rate_range(alpha, card["calibration_images"]))
    yield (
        f"False alarms: at --alpha {alpha:g}, {low:.1f} to {high:.1f} % of normal images; "
        f"--alpha can be {rounded_up(card['smallest_alpha']):g} or more."
    )


def _weakest(card: Card) -> Iterator[str]:
    """The class or group that is found worst when it is the anomaly."""
    if expected_auroc(card) is None:
        yield "Weakest class: not known."
        return
    aurocs = {
        name: each[card["score_function"]] for name, each in card["self_check"]["left_out"].items()
    }
    name = min(aurocs, key=lambda each: aurocs[each])
    yield f"Weakest class: {shown(name)}, found with an AUROC of {aurocs[name]:.2f}."


def sentences(card: Card) -> list[str]:
    """For the terminal, in the order of interest."""
    return [
        f"Trained on {card['images']:,} images of {_classes(card['classes'])}.",
        *_files(card),
        *_uses(card),
        *_accurate(card),
        *_false_alarms(card),
        f"Score function: {card['score_function']}; {card['score_function_reason']}.",
        *_expected(card),
    ]


def warnings_of(card: Card) -> list[str]:
    """In plain words, what speaks against relying on the model."""
    return [*_not_learned(card), *_poor(card)]


def _not_learned(card: Card) -> Iterator[str]:
    """Where classes are told apart little better than by always naming the largest one: less than
    twice as often and, where that says nothing, less than a third of the way to perfect."""
    if card["accuracy"] is None:
        return
    chance = max(card["classes"].values()) / sum(card["classes"].values())
    share = card["accuracy"]["share"]
    if share < min(2 * chance, chance + (1 - chance) / 3):
        yield (
            f"the network did not learn to tell your classes apart: {100 * share:.0f} % of new "
            f"images are given their own class, where guessing gives {100 * chance:.0f} %. Its "
            "scores mean little. Check that each image lies in the folder of its class, put "
            "classes that look alike into one, or add images."
        )


def _poor(card: Card) -> Iterator[str]:
    expected = expected_auroc(card)
    if expected is not None and expected < POOR:
        yield (
            f"the self-check was poor: AUROC {expected:.2f}, where 0.5 is guessing. Do not rely on "
            "this model to find odd images. More images, a larger --size or classes that differ in "
            "what you can see may help."
        )


def expected_auroc(card: Card) -> float | None:
    """Of the model's score, over all classes or groups of them that were left out."""
    found: float | None = (card["self_check"] or {}).get("auroc", {}).get(card["score_function"])
    return found


def _classes(classes: dict[str, int]) -> str:
    named = [f"{shown(name)} {count:,}" for name, count in list(classes.items())[:_NAMED_AT_MOST]]
    if len(classes) > _NAMED_AT_MOST:
        named.append(f"{len(classes) - _NAMED_AT_MOST} more")
    if len(classes) == 1:
        return f"one class, {shown(next(iter(classes)))}"
    return f"{len(classes)} classes: {', '.join(named)}"


def _files(card: Card) -> Iterator[str]:
    if card["fit"] is not None:
        yield card["fit"]
    if card["skipped"]:
        one = card["skipped"] == 1
        yield "One file was skipped:" if one else f"{card['skipped']:,} files were skipped:"
        yield from (f"  {why}" for _, why in card["skipped_files"][:_NAMED_AT_MOST])
        if card["skipped"] > _NAMED_AT_MOST:
            yield f"  and {card['skipped'] - _NAMED_AT_MOST:,} more."
    if card["copies"] == 1:
        yield "One image was left out as a copy of another."
    elif card["copies"]:
        yield f"{card['copies']:,} images were left out as copies of others."
    if others := card["passed_over"]:
        yield passed_over(others)


def _uses(card: Card) -> Iterator[str]:
    uses = [f"{card['training_images']:,} to learn from"]
    if card["validation_images"]:
        uses.append(f"{card['validation_images']:,} to choose the best epoch")
    if card["calibration_images"]:
        uses.append(f"{card['calibration_images']:,} to set the false-alarm rate")
    said = [f"Of the {card['images']:,} images, {', '.join(uses)}."]
    if card["training_seconds"] is not None:
        said.append(f"Training took {card['training_seconds']:.0f} s.")
    if not card["validation_images"]:
        said.append("No images were spared to choose the best epoch, so the last one was taken.")
    yield " ".join(said)


def _accurate(card: Card) -> Iterator[str]:
    if (accuracy := card["accuracy"]) is not None:
        whose = "" if card["validation_images"] else " (those that set the false-alarm rate)"
        yield (
            f"Accuracy: {100 * accuracy['share']:.1f} % of {accuracy['images']:,} images that it "
            f"did not learn from{whose} are given their own class."
        )


def _false_alarms(card: Card) -> Iterator[str]:
    smallest = card["smallest_alpha"]
    if smallest is None:
        yield "No images were kept to set a false-alarm rate: there are scores but no verdicts."
        return
    names = {USUAL_ALPHA: f"{USUAL_ALPHA}, the usual one,", _STRICT_ALPHA: str(_STRICT_ALPHA)}
    needs = [
        f"{name} needs {needed_for(alpha)}" for alpha, name in names.items() if smallest > alpha
    ]
    more = f"; {' and '.join(needs)} images to set it" if needs else ""
    least = rounded_up(smallest)
    told = f"False-alarm rate: --alpha can be {least:g} or more{more}."
    if (images := card["calibration_images"]) <= _PLENTY:
        alpha = max(USUAL_ALPHA, least)
        low, high = (round(100 * rate, 1) for rate in rate_range(alpha, images))
        told += (
            f" At {alpha:g} and with {images:,} images to set it, the rate lies between {low:g} "
            f"and {high:g} % nine times in ten, for normal images taken as these were."
        )
    yield told


def _expected(card: Card) -> Iterator[str]:
    check = card["self_check"]
    if check is None or "skipped" in check:
        why = "It was not asked for" if check is None else check["skipped"]
        yield f"Self-check: none. {why}; how well odd images are found is not known."
        return
    score = card["score_function"]
    if score not in check["auroc"]:
        yield f"Self-check: it says nothing of {score}, which needs two classes that are left."
        return
    yield (
        f"Self-check: {_each(card)} left out in turn of another training, on a CPU a shorter one, "
        "and taken for odd, "
        f"{check['seconds']:.0f} s in all: AUROC {check['auroc'][score]:.2f} {_promise(card)}"
    )
    ranges = _ranges(card)
    for name, tested in check["tested"].items():
        images = f"{tested['odd']:,} odd and {tested['normal']:,} normal images"
        told = "too few to tell"
        if name in ranges:
            told = f"AUROC {check['left_out'][name][score]:.2f} ({_from_to(*ranges[name])})"
        yield f"  {shown(name)}: {told}, {images}"


def _ranges(card: Card) -> dict[str, tuple[float, float]]:
    """Class or group left out → what the AUROC may be, as far as so many images can tell."""
    check = card["self_check"]
    tested = {name: check["tested"][name] for name in check["left_out"]}
    return {
        name: auroc_range(
            check["left_out"][name][card["score_function"]], each["odd"], each["normal"]
        )
        for name, each in tested.items()
    }


def promised_range(card: Card) -> tuple[float, float]:
    """From the lowest to the highest that the AUROC may be for a class or group left out."""
    lows, highs = zip(*_ranges(card).values())
    return min(lows), max(highs)


def _from_to(low: float, high: float) -> str:
    return f"{low:.2f} to {high:.2f}"


def _promise(card: Card) -> str:
    """What the AUROC is worth: nothing where the model is not like the networks of the check."""
    if any(_not_learned(card)):
        return (
            "(0.5 is guessing, 1 is perfect), but do not expect it of this model, which did not "
            "learn to tell your classes apart."
        )
    check = card["self_check"]
    chosen = card["score_function_reason"] != _ASKED_FOR
    told = (
        f"({_from_to(*promised_range(card))}) to expect for oddities as unlike as another class, "
        "in images taken as these were"
        f"{_BEST_OF_SEVERAL if chosen else ''}"
        "; 0.5 is guessing, 1 is perfect, and the range is what so many images leave open over all "
        f"{'groups' if _in_groups(card) else 'classes'}. Finer ones, such as a scratch, are not "
        "checked."
    )
    if check["classes"] == 2:
        told += " Each network of the check knew one class, where the model knows two."
    if any(tested["odd"] < _FEW_TESTED for tested in check["tested"].values()):
        told += " It is a rough guess: few images were left to test with."
    return told


def _each(card: Card) -> str:
    left_out, classes = len(card["self_check"]["left_out"]), card["self_check"]["classes"]
    most = "at most 5, on a CPU 3"  # selfcheck's numbers
    if _in_groups(card):
        number = f"{left_out} groups" if left_out > 1 else "one group"
        return f"{number} of classes ({most}; single ones are too small)"
    if left_out == classes:
        return "each class"
    return f"the {f'{left_out} ' if left_out > 1 else ''}largest of {classes} classes ({most})"


def _in_groups(card: Card) -> bool:
    """Whether single classes were too small: a group has a name that no class has."""
    return not card["self_check"]["left_out"].keys() <= card["classes"].keys()
