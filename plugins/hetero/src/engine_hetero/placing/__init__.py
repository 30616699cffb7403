"""Which device runs which operation: by users, by priority, or by cost."""
