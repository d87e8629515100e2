"""The verdict of a gate as JUnit's XML, which all CI servers show."""

from xml.etree import ElementTree

from shardyard.contract.gate import GateVerdict
from shardyard.contract.plain_text import escape_unsafe


def write_junit(verdict: GateVerdict, took_seconds: float) -> bytes:
    """A test case for each check: a broken one has failed, and one that cannot be judged is an error."""
    outcomes = [check.outcome for check in verdict.checks]
    counts = {
        "tests": str(len(outcomes)),
        "failures": str(outcomes.count("broken")),
        "errors": str(outcomes.count("unclear")),
        "skipped": "0",
        "time": f"{took_seconds:.3f}",
    }
    suites = ElementTree.Element("testsuites", counts)
    suite = ElementTree.SubElement(suites, "testsuite", {"name": "shardyard gate"} | counts)
    for check in verdict.checks:
        names = {"classname": f"shardyard.gate.{verdict.job_id}", "name": check.name, "time": "0"}
        case = ElementTree.SubElement(suite, "testcase", names)
        message = escape_unsafe(check.message, keep="\t\n")
        if check.outcome != "passed":
            kind = "failure" if check.outcome == "broken" else "error"
            told = ElementTree.SubElement(case, kind, {"message": message, "type": check.outcome})
            told.text = message
        else:
            ElementTree.SubElement(case, "system-out").text = message
    ElementTree.indent(suites)
    return bytes(ElementTree.tostring(suites, encoding="utf-8", xml_declaration=True)) + b"\n"
