"""An attachment as JUnit XML, which every CI system shows."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as Xml

from api.schemas import AttachmentView

GOOD = ("attached", "attached_by_reuse")


def write_junit(path: Path, found: AttachmentView) -> None:
    """One test for the outcome, and one for each gate."""
    cases = [_case("attached", found.status in GOOD, f"{found.status}: {_why(found)}")]
    for check in found.checks:
        text = f"asked for {check.required}, measured {check.measured}"
        cases.append(_case(check.name, check.passed, text))
    failed = sum(case.find("failure") is not None for case in cases)
    counts = {"tests": str(len(cases)), "failures": str(failed), "errors": "0"}
    suite = Xml.Element("testsuite", {"name": f"updraft attach {found.target}", **counts})
    suite.extend(cases)
    path.parent.mkdir(parents=True, exist_ok=True)
    Xml.ElementTree(suite).write(path, encoding="utf-8", xml_declaration=True)


def _case(name: str, passed: bool, text: str) -> Xml.Element:
    case = Xml.Element("testcase", {"classname": "updraft.attach", "name": name})
    if passed:
        Xml.SubElement(case, "system-out").text = text
    else:
        Xml.SubElement(case, "failure", {"message": text}).text = text
    return case


def _why(found: AttachmentView) -> str:
    if found.error is not None:
        return found.error.message
    return str((found.decision or {}).get("why", ""))
