"""An app that locks three tasks of Weblate, which cannot be edited here."""
