"""Requests in the own words of each dialect, one file each: what no other dialect can make it say."""
