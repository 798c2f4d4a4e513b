"""The description of a deployment: headgate.yaml, validated. The CDK app, `headgate doctor` and
`headgate local --file` read the same model."""
