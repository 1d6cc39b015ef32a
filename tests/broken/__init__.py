"""Transcripts that are broken on purpose, each in known ways, and what becomes of them."""
