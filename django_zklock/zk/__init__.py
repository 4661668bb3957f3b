"""The lock recipe on ZooKeeper: no Django, no Celery."""
