"""SQLite and PostgreSQL: connections, migrations and writes."""
