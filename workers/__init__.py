"""The side that runs attempts: Celery app, node agent, supervisor, ranks, training."""
