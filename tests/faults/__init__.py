"""Faults in real trainings: what ends, when, with which words, and what is lost or left behind."""
