"""API keys, scopes and the principal of a request."""
