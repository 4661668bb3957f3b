"""The addresses of a site whose admin has a theme: those of the test project, and grappelli's own."""

from __future__ import annotations

from config.urls import urlpatterns as project
from django.conf import settings
from django.urls import include, path

urlpatterns = list(project)
if "grappelli" in settings.INSTALLED_APPS:
    urlpatterns.insert(0, path("grappelli/", include("grappelli.urls")))
