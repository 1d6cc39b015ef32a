"""Requests with the fields that only one dialect has, one file for each dialect."""
