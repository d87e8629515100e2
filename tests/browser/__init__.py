"""The dashboard in a real browser: Debian's Chromium, a whole service behind it."""
