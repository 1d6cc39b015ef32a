"""Modules that the dialects share."""
