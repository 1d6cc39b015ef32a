"""Transcripts that are damaged on purpose, and their repair."""
