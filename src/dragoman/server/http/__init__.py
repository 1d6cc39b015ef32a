"""Requests, responses, errors and limits of the HTTP layer."""
