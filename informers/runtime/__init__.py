"""Acting on what the cache shows: queue, controllers, events, and the manager that owns the threads."""
