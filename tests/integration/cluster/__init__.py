"""Ensembles of real servers whose links are cut and whose sessions move."""
