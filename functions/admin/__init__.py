"""headgate-admin: tenants and their keys, for administrators."""
