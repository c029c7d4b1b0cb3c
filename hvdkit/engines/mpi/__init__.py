"""An engine: what moves the bytes, and one channel for each tensor library that it carries."""
