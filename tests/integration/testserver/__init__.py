"""The server of ``django_zklock.testing`` beside a real one."""
