"""The HTTP side: it validates, stores and shows; it never trains."""
