"""Deletion, erasure and garbage collection."""
