"""The answer to a query: where each operation runs, and why."""
