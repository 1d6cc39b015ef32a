"""Letters in the store: inbox, outbox, delivery and dead letters."""
