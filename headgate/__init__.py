"""What people touch: the command line, the tenant client, the local stand-in for AWS."""
