"""Limits of a profile, which the API, the supervisor and the ranks keep to."""

from typing import Final

MAX_PROFILE_STEPS: Final = 100
DEFAULT_PROFILE_STEPS: Final = 10
#: Profiles of one attempt: a profile's number is one byte, and its traces are kept as long as the job.
MAX_PROFILES: Final = 50
#: How long a rank may take to reach the end of a step, at which it begins to record.
BEGIN_SECONDS: Final = 30.0
#: A rank stops recording at the end of a step after so long, with the steps that it has.
RECORD_SECONDS: Final = 60.0
#: How long a rank may take, after that, to finish its step, and to write and send its trace.
SEND_SECONDS: Final = 60.0
#: When the supervisor of a profile must have answered for every rank; after it, another may be asked for.
ANSWER_SECONDS: Final = BEGIN_SECONDS + RECORD_SECONDS + SEND_SECONDS + 30.0
#: The largest trace of one rank, compressed.
MAX_TRACE_BYTES: Final = 64 * 1024 * 1024
#: A rank also stops recording when its memory has grown by so much.
MAX_GROWTH_BYTES: Final = 512 * 1024 * 1024
