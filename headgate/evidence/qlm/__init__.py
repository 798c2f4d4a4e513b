"""The evaluation of QLM (SoCC 2024), and the scenes that add tenants to it."""
