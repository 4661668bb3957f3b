"""The web server of the test project, and the package as a Django project sees it."""
