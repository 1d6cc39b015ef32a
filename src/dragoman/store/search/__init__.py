"""Full-text search: tokenizer, index and queries."""
