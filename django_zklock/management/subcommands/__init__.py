"""The subcommands of ``manage.py zklock``, one module each."""
