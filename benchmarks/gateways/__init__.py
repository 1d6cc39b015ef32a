"""Gateways side by side: a fake provider, a load generator, bare proxies, and how each gateway is started."""
