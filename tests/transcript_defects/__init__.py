"""Tests of damaged transcripts and their repair."""
