"""TLS, SASL and ACL, and credentials that stay out of sight."""
