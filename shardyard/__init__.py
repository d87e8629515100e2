"""What people type and import: the command line and the HTTP client. Importing it loads no torch."""

__version__ = "0.1.0"
