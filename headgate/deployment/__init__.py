"""The description of a deployment: headgate.yaml, validated. The CDK app and `headgate doctor` read the same model."""
