"""What tests said, whoever ran them: one JSON file a label, and one closing line for all.

  python3 tools/results.py DIR     lists what failed and what was skipped, prints the closing line,
                                   exit 1 if anything failed or nothing passed
"""

import dataclasses
import json
import pathlib
import sys
import xml.etree.ElementTree as ElementTree


@dataclasses.dataclass
class Outcome:
    name: str
    state: str  # passed, failed, skipped
    note: str = ""  # why it was skipped or failed, one line


def from_junit(path, prefix=""):
    """Outcomes of a JUnit file, as googletest, pytest and ctest write it."""
    outcomes = []
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        name = ".".join(filter(None, (prefix, case.get("classname"), case.get("name"))))
        failure = next((e for e in case if e.tag in ("failure", "error")), None)
        skipped = case.find("skipped")
        if failure is not None or case.get("status") == "fail":
            note = (failure.get("message") or "") if failure is not None else ""
            outcomes.append(Outcome(name, "failed", first_line(note)))
        elif skipped is not None:
            outcomes.append(Outcome(name, "skipped", first_line(skipped.get("message") or "")))
        elif case.get("status") in ("notrun", "disabled"):
            outcomes.append(Outcome(name, "skipped", "not run"))
        else:
            outcomes.append(Outcome(name, "passed"))
    return outcomes


def first_line(text):
    return text.strip().splitlines()[0][:200] if text.strip() else ""


def save(directory, label, outcomes):
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    rows = [dataclasses.asdict(outcome) for outcome in outcomes]
    (directory / f"{label}.json").write_text(json.dumps(rows, indent=1))


def load(directory):
    outcomes = []
    for path in sorted(pathlib.Path(directory).glob("*.json")):
        for row in json.loads(path.read_text()):
            outcomes.append(Outcome(f"{path.stem}: {row['name']}", row["state"], row["note"]))
    return outcomes


def close(outcomes):
    """Prints the lists and the closing line; True if all is well."""
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    for outcome in outcomes:
        counts[outcome.state] += 1
    for state in ("skipped", "failed"):
        for outcome in outcomes:
            if outcome.state == state:
                print(f"{state}: {outcome.name}" + (f" ({outcome.note})" if outcome.note else ""))
    print(", ".join(f"{count} {state}" for state, count in counts.items()), flush=True)
    return counts["failed"] == 0 and counts["passed"] > 0


if __name__ == "__main__":
    sys.exit(0 if close(load(sys.argv[1])) else 1)
