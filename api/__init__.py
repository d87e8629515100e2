"""The HTTP side: it validates, stores and shows; it never trains."""

import jobs.support.logging_config  # noqa: F401
