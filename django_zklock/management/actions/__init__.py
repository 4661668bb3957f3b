"""What ``manage.py zklock`` can do: a module for each action."""
