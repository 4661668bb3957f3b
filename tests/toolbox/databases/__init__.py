"""The database servers PostgreSQL and MariaDB."""
