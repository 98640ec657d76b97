"""Named checks of a client: all are made, and what failed is told as JSON."""

import json
import sys
import traceback


def run(checks, *arguments):
    """Calls every check with the arguments; prints a line of JSON and ends with 1 if any failed."""
    failed = {}
    for check in checks:
        try:
            check(*arguments)
        except Exception:  # Whatever it is, it goes into the report, and the next check has its turn.
            failed[check.__name__] = traceback.format_exc(limit=-1)
    print(
        json.dumps({"passed": [check.__name__ for check in checks if check.__name__ not in failed], "failed": failed})
    )
    sys.exit(1 if failed else 0)


def equal(got, want):
    if got != want:
        raise AssertionError(f"want {str(want)[:300]!r}, got {str(got)[:300]!r}")
