"""What dialects have in common."""
