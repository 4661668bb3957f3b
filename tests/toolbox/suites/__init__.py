"""Another project's tests, run in two ways and compared: kazoo's on two servers, Celery's without the gate and with."""
