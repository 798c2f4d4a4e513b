"""headgate beside other gateways in front of the same instant worker."""
