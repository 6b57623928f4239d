"""The model card as text: what a model was trained on and how well it works. No torch.

The facts come from `anocaps.detectors.card`. The commands add files and the self-check.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Literal

from anocaps.base.text import shown
from anocaps.images.walk import passed_over
from anocaps.judging.calibration import USUAL_ALPHA, needed_for, rounded_up
from anocaps.judging.spread import auroc_range, rate_range

Card = dict[str, Any]

GOOD, POOR = 0.9, 0.7  # an AUROC of 0.9 or more is called good, below 0.7 poor
_FEW_TESTED = 30  # images of a left-out class; with fewer, the AUROC is a rough guess
_NAMED_AT_MOST = 10
_KEPT_AT_MOST = 100  # names of skipped files, and extensions of files that are no images


def add_files(
    card: Card,
    fit: str,
    skipped: Sequence[tuple[Path, str]],
    copies: int,
    others: Sequence[tuple[str, int]],
) -> None:
    """Add facts about files to the card: how they were read (`decode.describe`), which could not
    be read and why, the number of copies, and other files by extension."""
    card["fit"] = fit
    card["skipped"] = len(skipped)
    card["skipped_files"] = [[str(file), why] for file, why in skipped[:_KEPT_AT_MOST]]
    card["copies"] = copies
    card["passed_over"] = dict(others[:_KEPT_AT_MOST])


# ── four lines ───────────────────────────────────────────────────────────────────────────────


def four_lines(card: Card, next_command: str) -> list[str]:
    """Four lines: how well it works, false alarms, weakest class, next command."""
    label = pretrained(card.get("pretrained"))
    well = f"How well: {_how_well(card)}" + (f" {label[0].upper()}{label[1:]}." if label else "")
    return [well, _alarms(card), _weakest(card), f"Next: {next_command}"]


def pretrained(dataset: str | None) -> str:
    """The label of results with pretrained features: "pretrained on ImageNet"; else empty."""
    return f"pretrained on {shown(str(dataset))}" if dataset else ""


def _how_well(card: Card) -> str:
    expected, lines = expected_auroc(card), _synthetic(card)
    pasted = [line for line in lines if line["kind"] == lines[0]["kind"]]
    if expected is None and not pasted:
        why = (card["self_check"] or {}).get("skipped", "There was no self-check")
        return f"not known. {why}."
    if any(_not_learned(card)):
        return "poorly. The network did not learn to tell your classes apart."
    said = []
    if expected is not None:
        low, high = promised_range(card)
        said.append(f"other kinds of object {expected:.2f} ({_from_to(low, high)})")
    if pasted:
        sizes = [f"of {_percent(line['size'])} {_auroc(card, line):.2f}" for line in pasted]
        sizes[0] = sizes[0].replace(" %", " % of the side")
        said.append(f"{pasted[0]['kind']} {', '.join(sizes)}")
        best = max(lines, key=lambda line: _auroc(card, line))
        if best not in pasted:
            said.append(f"at best {synthetic_name(best)} {_auroc(card, best):.2f}")
    return f"AUROC of {'; '.join(said)}. 0.5 is guessing, 1 is perfect."


def _alarms(card: Card) -> str:
    if card["smallest_alpha"] is None:
        return "False alarms: not known. No images were kept to set a rate."
    least = rounded_up(card["smallest_alpha"])
    alpha = max(USUAL_ALPHA, least)
    low, high = (100 * rate for rate in rate_range(alpha, card["calibration_images"]))
    return (
        f"False alarms: at --alpha {alpha:g}, {low:.1f} to {high:.1f} % of normal images; "
        f"--alpha can be {least:g} or more."
    )


def _weakest(card: Card) -> str:
    """The left-out class or group with the lowest AUROC; for one class, the worst synthetic
    anomalies."""
    if expected_auroc(card) is None:
        if not (lines := _synthetic(card)):
            return "Weakest class: not known."
        line = min(lines, key=lambda each: _auroc(card, each))
        return f"Weakest: {synthetic_name(line)}, found with an AUROC of {_auroc(card, line):.2f}."
    left_out = card["self_check"]["left_out"]
    aurocs = {name: each[card["score_function"]] for name, each in left_out.items()}
    name = min(aurocs, key=lambda each: aurocs[each])
    return f"Weakest class: {shown(name)}, found with an AUROC of {aurocs[name]:.2f}."


def synthetic_name(line: dict[str, Any]) -> str:
    """The name of an entry of the self-check's `synthetic`."""
    return f"{line['kind']} of {_percent(line['size'])} of the side"


def _synthetic(card: Card) -> list[dict[str, Any]]:
    return (card["self_check"] or {}).get("synthetic") or []


def _auroc(card: Card, line: dict[str, Any]) -> float:
    return float(line["auroc"][card["score_function"]])


def _percent(share: float) -> str:
    return f"{100 * share:g} %"


def expected_auroc(card: Card) -> float | None:
    """The mean AUROC of the model's score function over all left-out classes or groups."""
    found: float | None = (card["self_check"] or {}).get("auroc", {}).get(card["score_function"])
    return found


def promised_range(card: Card) -> tuple[float, float]:
    """The lowest and the highest AUROC that the tested images allow, over all left-out classes."""
    lows, highs = zip(*_ranges(card).values())
    return min(lows), max(highs)


def _ranges(card: Card) -> dict[str, tuple[float, float]]:
    """The range of the AUROC by left-out class or group."""
    check, function = card["self_check"], card["score_function"]
    tested = {name: check["tested"][name] for name in check["left_out"]}
    return {
        name: auroc_range(check["left_out"][name][function], each["anomalous"], each["normal"])
        for name, each in tested.items()
    }


def _from_to(low: float, high: float) -> str:
    return f"{low:.2f} to {high:.2f}"


# ── warnings ─────────────────────────────────────────────────────────────────────────────────


def warnings_of(card: Card) -> list[str]:
    """Reasons not to rely on the model."""
    return [*_not_learned(card), *_poor(card)]


def _not_learned(card: Card) -> Iterator[str]:
    """A warning if the network is hardly better than always guessing the largest class."""
    if card["accuracy"] is None:
        return
    chance = max(card["classes"].values()) / sum(card["classes"].values())
    share = card["accuracy"]["share"]
    # less than twice as accurate as guessing, and less than a third of the way to perfect
    if share < min(2 * chance, chance + (1 - chance) / 3):
        yield (
            f"the network gives {100 * share:.0f} % of new images their own class, guessing gives "
            f"{100 * chance:.0f} %. Check the labels, join classes that look alike, or add images."
        )


def _poor(card: Card) -> Iterator[str]:
    expected, lines = expected_auroc(card), _synthetic(card)
    what = "AUROC"
    if expected is None and lines:
        expected = max(_auroc(card, line) for line in lines)
        what = "AUROC of the easiest synthetic anomalies"
    if expected is not None and expected < POOR:
        yield (
            f"the self-check was poor: {what} {expected:.2f}. Do not rely on this model; add "
            "images or use a larger --size."
        )


Level = Literal["good", "partly", "bad", "unknown"]


def verdict_of(card: Card) -> tuple[Level, str]:
    """The result of the self-check, as a level and a sentence."""
    if warned := warnings_of(card):
        return "bad", f"{warned[0][:1].upper()}{warned[0][1:]}"
    expected, lines = expected_auroc(card), _synthetic(card)
    aurocs = [_auroc(card, line) for line in lines] if expected is None else [expected]
    said = _how_well(card)
    if not aurocs:
        return "unknown", f"How well anomalies are found is {said}"
    return "good" if median(aurocs) >= GOOD else "partly", f"Self-check: {said}"


# ── the whole card ───────────────────────────────────────────────────────────────────────────


def sentences(card: Card) -> list[str]:
    """The whole card: training images, training, and the self-check by class."""
    return [
        f"Trained on {card['images']:,} images of {_classes(card['classes'])}.",
        *_files(card),
        *_uses(card),
        *_accurate(card),
        *_chosen(card),
        *_resolution(card),
        *_checked(card),
        *_seen(card),
    ]


def _classes(classes: dict[str, int]) -> str:
    if len(classes) == 1:
        return f"one class, {shown(next(iter(classes)))}"
    named = [f"{shown(name)} {count:,}" for name, count in list(classes.items())[:_NAMED_AT_MOST]]
    if len(classes) > _NAMED_AT_MOST:
        named.append(f"{len(classes) - _NAMED_AT_MOST} more")
    return f"{len(classes)} classes: {', '.join(named)}"


def _files(card: Card) -> Iterator[str]:
    if card["fit"] is not None:
        yield card["fit"]
    if card["skipped"]:
        yield f"Files skipped: {card['skipped']:,}."
        yield from (f"  {why}" for _, why in card["skipped_files"][:_NAMED_AT_MOST])
        if card["skipped"] > _NAMED_AT_MOST:
            yield f"  and {card['skipped'] - _NAMED_AT_MOST:,} more."
    if card["copies"]:
        yield f"Images left out as copies of others: {card['copies']:,}."
    yield from near_copies(card)
    if card["passed_over"]:
        yield passed_over(card["passed_over"])


def near_copies(card: Card) -> Iterator[str]:
    if card["near_copies"]:
        yield (
            "Near-copies among the training images, such as frames of one video: "
            f"{card['near_copies']:,}. No calibration image is a near-copy of these."
        )


def _uses(card: Card) -> Iterator[str]:
    uses = {
        "to learn from": card["training_images"],
        "to choose the best epoch": card["validation_images"],
        "to set the false-alarm rate": card["calibration_images"],
    }
    yield f"Images used: {', '.join(f'{n:,} {use}' for use, n in uses.items() if n)}."
    if not card["validation_images"]:
        yield "No images were kept to choose the best epoch: the last one was taken."
    if card["training_seconds"] is not None:
        yield f"Training took {card['training_seconds']:.0f} s."


def _accurate(card: Card) -> Iterator[str]:
    if (accuracy := card["accuracy"]) is not None:
        yield (
            f"Accuracy: {100 * accuracy['share']:.1f} % of {accuracy['images']:,} images that were "
            "not trained on get their own class."
        )


def _chosen(card: Card) -> Iterator[str]:
    if card["preset"] is not None:
        yield f"Preset: {card['preset']}; {card['preset_reason']}."
    if card["working_size"] is not None:
        height, width = card["working_size"]
        yield f"The network sees {width}×{height} pixels."
    yield f"Score function: {card['score_function']}; {card['score_function_reason']}."


def _resolution(card: Card) -> Iterator[str]:
    """How many calibration images a smaller alpha needs."""
    smallest = card["smallest_alpha"]
    for alpha in (USUAL_ALPHA, 0.01):
        if smallest is not None and smallest > alpha:
            yield f"An --alpha of {alpha:g} needs {needed_for(alpha)} calibration images."


def _checked(card: Card) -> Iterator[str]:
    check = card["self_check"]
    if check is None or "skipped" in check:
        return
    function = card["score_function"]
    if function not in check["auroc"]:
        yield f"Self-check: not possible for {function}, which needs two classes to compare."
        return
    yield f"Self-check, {check['seconds']:.0f} s: {_left_out(card)} left out of training in turn."
    ranges = _ranges(card)
    for name, tested in check["tested"].items():
        told = "too few to tell"
        if name in ranges:
            told = f"AUROC {check['left_out'][name][function]:.2f} ({_from_to(*ranges[name])})"
        counts = f"{tested['anomalous']:,} images of it and {tested['normal']:,} normal ones"
        yield f"  {shown(name)}: {told}, {counts}"
    yield from _caveats(card)


def _left_out(card: Card) -> str:
    check = card["self_check"]
    groups = len(check["left_out"])
    if not check["left_out"].keys() <= card["classes"].keys():  # a group has a name of its own
        return f"{groups} group{'' if groups == 1 else 's'} of small classes"
    return "each class" if groups == check["classes"] else f"{groups} of {check['classes']} classes"


def _caveats(card: Card) -> Iterator[str]:
    """The limits of the AUROC."""
    check = card["self_check"]
    yield "It tells how well another class is found. It says nothing about small defects."
    if check["classes"] == 2:
        yield "Each network of the self-check learned one class; the model learned two."
    if any(tested["anomalous"] < _FEW_TESTED for tested in check["tested"].values()):
        yield "It is a rough guess: few images were left to test with."


def _seen(card: Card) -> Iterator[str]:
    """The synthetic anomalies line by line."""
    check, lines = card["self_check"], _synthetic(card)
    if check is None or not lines:
        if why := (check or {}).get("synthetic_skipped"):
            yield f"Synthetic anomalies: none. {why}."
        return
    yield (
        "Synthetic anomalies, made from calibration images, against all "
        f"{card['calibration_images']:,} calibration images:"
    )
    for line in lines:
        value = _auroc(card, line)
        between = _from_to(*auroc_range(value, line["images"], card["calibration_images"]))
        contrast = f"contrast {100 * line['contrast']:.0f} %"
        yield f"  {synthetic_name(line)}: AUROC {value:.2f} ({between}), {contrast}"
    yield "They hint at the sizes and contrasts that the model can see. They are no promise."
