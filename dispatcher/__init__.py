"""The gate: it admits requests, orders those that wait, and charges their tenants. See ARCHITECTURE.md."""
