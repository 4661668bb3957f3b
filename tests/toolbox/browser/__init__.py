"""The browser Chromium."""
