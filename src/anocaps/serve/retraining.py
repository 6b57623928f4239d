"""Photos that the user marked normal, for the next training.

False alarms were chosen by their low score. In the calibration set they would make normal images
look worse than they are, so they are only trained on. An audit draws photos at random, flagged or
not: its normal photos may replace the calibration set, if every photo of it has a mark.
"""

from anocaps.base.errors import InputError
from anocaps.serve.database import Database, Record
from anocaps.serve.review import audits


def collect(database: Database, false_alarms: bool, audit: int | None) -> Record:
    """What a training job learns from beside the photos: ids of rows."""
    chosen: Record = {"false_alarms": [], "audit": []}
    drawn = set() if audit is None else set(_normal_of(database, audit))
    if false_alarms:
        marked = [m["row"] for m in database.newest_marks() if m["mark"] == "normal"]
        chosen["false_alarms"] = [row for row in marked if row not in drawn]
        if not marked:
            raise InputError("no photo is marked normal yet")
    chosen["audit"] = sorted(drawn)
    return chosen


def _normal_of(database: Database, number: int) -> list[int]:
    """The normal photos of an audit of all photos, each of which has a mark."""
    found = database.read("SELECT * FROM audits WHERE id = ?", number)
    if not found or found[0]["among"] != "all":
        raise InputError("only an audit of all photos, flagged or not, can recalibrate")
    (audit,) = (each for each in audits(database, found[0]["job"]) if each["id"] == number)
    marks = {row["id"]: row["mark"] for row in database.rows(audit["job"])}
    if any(marks.get(row) not in ("normal", "anomalous") for row in audit["rows"]):
        raise InputError("mark every photo of the audit as normal or anomalous first")
    return [row for row in audit["rows"] if marks[row] == "normal"]
