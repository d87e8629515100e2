"""The HTTP side: it validates, stores and shows; it never trains."""

import jobs.lean_log  # noqa: F401
