"""Every code of an error, with its status and what it means."""

from api.http.problems import PROBLEMS
from api.system.problem_routes import EXPLANATIONS


def text() -> str:
    rows = [
        f"| `{code}` | {status} | {EXPLANATIONS[code].replace('|', '/')} |"
        for code, (status, _) in sorted(PROBLEMS.items(), key=lambda entry: (entry[1][0], entry[0]))
    ]
    return (
        "# Problems\n\n"
        "Every error of the API has a `code`, which does not change, and a status of HTTP. The same table is in the "
        "service, at `/docs/problems`. [Errors](../api.md#errors) says how they look, and [Troubleshooting]"
        "(../troubleshooting.md) begins with what you see.\n\n"
        + "\n".join(["| code | status | means |", "|---|---|---|", *rows])
        + "\n"
    )
