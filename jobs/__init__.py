"""The domain that the HTTP side and the workers share: no torch, no celery, no fastapi."""
