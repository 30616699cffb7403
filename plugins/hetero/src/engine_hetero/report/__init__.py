"""What a query answers: where each operation runs, and why."""
