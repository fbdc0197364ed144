"""FE106: the process that checks a target ended without an answer."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE106",
    name="process_ended",
    severity="error",
    message="process ended before the check was done",
    why="""
Each target is checked in a process of its own, and this one ended before it returned an exported program or
an error. The model's code may have called `os._exit` or `sys.exit`, a custom operator or another native
library may have crashed, or the system may have killed the process because memory ran out. The note has the
exit code or the signal, and the last lines that the process wrote.
""",
    how_to_repair="""
Remove the call that ends the process; raise an exception instead. After a crash, run the command again with
`FAKEXPORT_IN_PROCESS=1` and `python -X faulthandler -m fakexport`, which prints the Python line that crashed.
After `SIGKILL`, look for the out-of-memory killer in the log of the system.
""",
    failing_model=None,
    repair=None,
    fails_on="build",
)
