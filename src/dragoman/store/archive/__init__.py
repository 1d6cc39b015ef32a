"""Export, import, backup and verification."""
