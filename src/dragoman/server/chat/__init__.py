"""Endpoints of the chat API: threads, messages, models and attachments."""
