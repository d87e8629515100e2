"""How an attempt ends: its outcome, the error that explains it, and an end that could not be reported yet."""
