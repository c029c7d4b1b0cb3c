"""Engines move bytes between processes; which one runs where is decided in ``table``."""
