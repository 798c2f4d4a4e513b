"""The CDK app that puts headgate on AWS."""
