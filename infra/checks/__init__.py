"""What the CDK and AWS's own checks say of the app."""
